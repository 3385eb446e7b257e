"""Lists of items as OpenAI pages them, and the queries that ask for a part of one."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.api.strictjson import invalid

MOST = 100
DEFAULT = 20
PARAMETERS = frozenset({"limit", "order", "after"})


def page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """`items`: the oldest first. `query`: limit (1 to 100), order (desc, asc), after (an item's id).

    Raises ApiError 400 naming the parameter.
    """
    no_more_than(query, PARAMETERS)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc")
    ordered = list(items if order == "asc" else reversed(items))
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise invalid("after", "there is no such item")
        ordered = ordered[ids.index(after) + 1 :]
    limit = _limit(query.get("limit"))
    return all_of(ordered[:limit], has_more=len(ordered) > limit)


def all_of(items: Sequence[Mapping[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """The list object around these, in their order."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }


def no_more_than(query: Mapping[str, str], known: frozenset[str]) -> None:
    """Raises ApiError 400 for a parameter that means nothing here."""
    for name in query:
        if name not in known:
            raise invalid(name, "this is not supported", "unsupported_parameter")


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and 1 <= int(given) <= MOST):
        raise invalid("limit", f"must be a whole number from 1 to {MOST}")
    return int(given)
