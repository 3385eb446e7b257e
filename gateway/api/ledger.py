"""The ledger of attempts in an answer's body, for those who ask for it: `x-headrace-ledger: true`."""

from collections.abc import Mapping
from typing import Any

from gateway.api.strictjson import invalid
from gateway.ledger import Entry, Ledger
from gateway.prices import billionths, written

HEADER = "x-headrace-ledger"
FIELD = "headrace"  # of the body, or of a stream's last event


def wanted(headers: Mapping[str, str]) -> bool:
    """Raises ApiError 400 for a value that is neither true nor false."""
    value = headers.get(HEADER, "false")
    if value not in ("true", "false"):
        raise invalid(HEADER, "must be true or false")
    return value == "true"


def told(ledger: Ledger) -> dict[str, Any]:
    """Money as decimal text, in the unit of the price list; `billed` is what the tenant's limits were charged."""
    billed = sum(billionths(entry.cost) for entry in ledger.entries if entry.billed)
    return {
        "ledger": [_attempt(entry) for entry in ledger.entries],
        "cost": written(sum(entry.cost for entry in ledger.entries)),
        "billed": written(billed / 1e9),
    }


def _attempt(entry: Entry) -> dict[str, Any]:
    usage = entry.usage
    return {
        "tier": entry.tier,
        "replica": entry.replica,
        "outcome": entry.outcome,
        "seconds": None if entry.ended is None else round(entry.ended - entry.started, 6),
        "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
        "cached_tokens": 0 if usage is None else usage.cached_tokens,
        "completion_tokens": 0 if usage is None else usage.completion_tokens,
        "confidence": entry.confidence,
        "judged_after": entry.judged_after,
        "cost": written(entry.cost),
        "billed": entry.billed,
    }
