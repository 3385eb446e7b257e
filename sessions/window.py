"""What of a conversation goes to a model: the client's new turns told from repeated ones, and a history cut to fit."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from sessions import Turn

Count = Callable[[Sequence[Turn]], int]


class WindowError(ValueError):
    """Even the system prompt and the last turn do not fit."""


def fit(turns: Sequence[Turn], budget: int, count: Count) -> tuple[Turn, ...]:
    """As many of the latest turns as `budget` tokens hold, with every system prompt.

    A cut falls before a user's turn, so that no answer is left without its question; only where no such cut fits is
    the last turn taken alone. `count`: tokens of these turns as one prompt; more turns never have fewer. It is called
    about log2(turns) times. Raises WindowError.
    """
    if not turns:
        return ()
    said = [index for index, turn in enumerate(turns) if turn.role != "system"]
    starts = [0, *(index for index in said[1:-1] if turns[index].role == "user"), *said[-1:]]

    def since(start: int) -> tuple[Turn, ...]:
        return tuple(turn for index, turn in enumerate(turns) if turn.role == "system" or index >= start)

    first = bisect_left(starts, True, key=lambda start: count(since(start)) <= budget)
    if first == len(starts):
        raise WindowError(f"the system prompt and the last turn exceed {budget} tokens")
    return since(starts[first])


def merge(history: Sequence[Turn], incoming: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns of `incoming` that are new, for clients that repeat the conversation and for those that do not.

    - A leading system prompt that the history leads with is not new; any other one is.
    - Of the rest, the longest beginning that the history ends with is a repetition. Histories end with an answer, so
      only a client that sends answers back repeats; a user who says the same again is heard again.
    - The last turn is new in any case, unless it is an answer, from which the client wants to go on.

    Turns are the same when role, name and content are, but for white space around the content, which clients strip.
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


def _said(turn: Turn) -> tuple[str, str | None, str]:
    return turn.role, turn.name, turn.content.strip()
