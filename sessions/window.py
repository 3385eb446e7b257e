"""What of a conversation goes to a model: the client's new turns told from repeated ones, and a history cut to fit."""

import json
from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence

from sessions import Call, Turn

Count = Callable[[Sequence[Turn]], int]


class WindowError(ValueError):
    """Even the system prompt and the last turn do not fit."""


def fit(turns: Sequence[Turn], budget: int, count: Count) -> tuple[Turn, ...]:
    """As many of the latest turns as `budget` tokens hold, with every system prompt.

    A cut falls before a user's turn, so that no answer is left without its question, and never between calls and
    their results. Of a long tool loop the oldest calls go, with their results, and its question stays; only where that
    does not fit either is the last turn taken alone, a result with the calls before it. `count`: tokens of these turns
    as one prompt; more turns never have fewer. It is called about log2(turns) times. Raises WindowError.
    """
    if not turns:
        return ()
    cuts = _cuts(turns)

    def kept(cut: tuple[int, int | None]) -> tuple[Turn, ...]:
        start, question = cut
        return tuple(
            turn
            for index, turn in enumerate(turns)
            if turn.role == "system" or index >= start or index == question
        )

    first = bisect_left(cuts, True, key=lambda cut: count(kept(cut)) <= budget)
    if first == len(cuts):
        raise WindowError(f"the system prompt and the last turn exceed {budget} tokens")
    return kept(cuts[first])


def _cuts(turns: Sequence[Turn]) -> list[tuple[int, int | None]]:
    """Where a history may be cut, from the most to the least that stays: from which turn on, and a question before."""
    starts = [index for index, turn in enumerate(turns) if turn.role not in ("system", "tool")]
    users = [index for index in starts if turns[index].role == "user"]
    last = starts[-1] if starts else 0
    cuts: list[tuple[int, int | None]] = [(0, None), *((index, None) for index in users if 0 < index < last)]
    if users:
        loop = [index for index in starts if index > users[-1] and turns[index].calls]
        cuts += [(index, users[-1]) for index in loop]
    return [*cuts, (last, None)] if starts else cuts


def merge(history: Sequence[Turn], incoming: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of `incoming` that are new, for clients that repeat the conversation and for those that do not.

    - A leading system prompt that the history leads with is not new; any other one is.
    - Of the rest, the longest beginning that the history ends with is a repetition. Histories end with an answer, so
      only a client that sends answers back repeats; a user who says the same again is heard again.
    - The last turn is new in any case, unless it is an answer, from which the client wants to go on.

    Turns are the same when role, name, content and calls are, but for white space around the content, which clients
    strip, and in arguments.
    """
    old_systems, old = _lead(history)
    systems, rest = _lead(incoming)
    known = {_said(turn) for turn in old_systems}
    fresh = [turn for turn in systems if _said(turn) not in known]
    return (*fresh, *rest[_overlap(old, rest) :])


def _lead(turns: Sequence[Turn]) -> tuple[Sequence[Turn], Sequence[Turn]]:
    """The leading system prompts, and what follows them."""
    end = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
    return turns[:end], turns[end:]


def _overlap(history: Sequence[Turn], incoming: Sequence[Turn]) -> int:
    """How many turns at the beginning of `incoming` repeat the end of `history`, in linear time.

    The prefix function of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977): at each place of a text, the length of
    the longest beginning of the text that ends there. None, which no turn equals, parts what is new from what is old.
    """
    most = len(incoming) - (bool(incoming) and incoming[-1].role != "assistant")
    if most == 0:
        return 0
    text = [*map(_said, incoming[:most]), None, *map(_said, history[-most:])]
    lengths = [0]
    for turn in text[1:]:
        length = lengths[-1]
        while length and text[length] != turn:
            length = lengths[length - 1]
        lengths.append(length + (text[length] == turn))
    return lengths[-1]


def _said(turn: Turn) -> Hashable:
    return turn.role, turn.name, turn.content.strip(), turn.answers, tuple(map(_called, turn.calls))


def _called(call: Call) -> Hashable:
    """Clients write arguments anew, with other white space and escapes."""
    try:
        arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return call.id, call.name, arguments
