"""An answer, its grade, and what is kept of the two."""

import json
from collections.abc import Sequence

from backends.backend import Delta, Sampling
from backends.prompt import ChatMessage, Prompt
from backends.wire import Grammar
from classifier import Assessment
from gateway.judges import Weights
from gateway.learning.recordings import DIGITS, Recording

# An object, since there are servers that hold an answer to nothing else.
SCHEMA = {
    "type": "object",
    "properties": {"good": {"type": "boolean"}},
    "required": ["good"],
    "additionalProperties": False,
}
VERDICT = Sampling(
    max_tokens=32, temperature=0.0, grammar=Grammar(kind="json_schema", source=json.dumps(SCHEMA))
)


def question(asked: str, answer: str, wanted: str) -> Prompt:
    """What a model is asked about another's answer, with `VERDICT`; `says_yes` reads what it says."""
    content = (
        f"{asked}\n\n--- An answer to this ---\n{answer}\n\n--- What is wanted ---\n{wanted}\n\n"
        'Is the answer right and as it is wanted? Say {"good": true} or {"good": false}.'
    )
    return Prompt(messages=(ChatMessage(role="user", content=content),))


def says_yes(deltas: Sequence[Delta]) -> bool:
    """No also where it says nothing of the kind."""
    try:
        return bool(json.loads(text_of(deltas)) == {"good": True})
    except ValueError:
        return False


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def recorded(
    deltas: Sequence[Delta],
    *,
    sample: str,
    set: str,
    tier: str,
    ran: Weights,
    assessment: Assessment,
    good: bool,
) -> Recording:
    """Of a whole answer with signals."""
    last = deltas[-1]
    signals = [signal for delta in deltas for signal in delta.signals]
    free = [signal for signal in signals if not signal.forced]
    assert last.usage is not None
    return Recording(
        sample=sample,
        set=set,
        tier=tier,
        model=ran.model,
        weights=ran.format,
        task=assessment.task,
        expected=assessment.good.get(tier),
        good=good,
        finish="length" if last.finish == "length" else "stop",
        prompt_tokens=last.usage.prompt_tokens,
        tokens=last.usage.completion_tokens,
        forced=len(signals) - len(free),
        logprobs=tuple(round(signal.logprob, DIGITS) for signal in free),
        margins=tuple(_rounded(signal.margin) for signal in free),
        entropies=tuple(_rounded(signal.entropy) for signal in free),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
