"""Stop strings, found in the bytes of the answer as they come.

The automaton of Aho and Corasick ("Efficient string matching", 1975): its state is the longest end of the text with
which some stop string begins. So a byte costs the same for one stop string and for a thousand, a match is seen at
its first possible end, and the depth of the state is what has to be held back: nothing more, nothing less.
"""

from collections import deque
from collections.abc import Iterable


class StopMatcher:
    """Looks for several strings at once in one text."""

    def __init__(self, stops: Iterable[bytes]) -> None:
        """Raises ValueError for an empty stop string, which would match everywhere."""
        self._next: list[dict[int, int]] = [{}]  # state → byte → state: the tree of the stop strings
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in a state
        self._fallback = [0]  # the state of the longest proper end of this state's string
        self._state = 0
        for stop in stops:
            self._add(stop)
        self._link()

    @property
    def held(self) -> int:
        """How many bytes at the end of the text may yet turn out to begin a stop string."""
        return self._depth[self._state]

    def push(self, data: bytes) -> int | None:
        """Go on with the text. None without a match; else how many bytes, from the match's start on, are too many.

        The match that ends first counts; of those that end together, the longest. The text is over then: what the
        data holds behind the match is part of the count, and `push` must not be called again.
        """
        for at, byte in enumerate(data, 1):
            self._state = self._step(self._state, byte)
            if matched := self._match[self._state]:
                return matched + len(data) - at
        return None

    def _step(self, state: int, byte: int) -> int:
        while state and byte not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(byte, 0)

    def _add(self, stop: bytes) -> None:
        if not stop:
            raise ValueError("a stop string is empty")
        state = 0
        for byte in stop:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
                self._fallback.append(0)
            state = self._next[state][byte]
        self._match[state] = len(stop)

    def _link(self) -> None:
        """Breadth first, since the fallback of a state is nearer to the root than the state."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for byte, child in self._next[state].items():
                fallback = self._fallback[child] = self._step(self._fallback[state], byte)
                self._match[child] = self._match[child] or self._match[fallback]
                queue.append(child)
