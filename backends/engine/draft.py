"""What somebody thinks that an answer will say next, as far as a step can verify it."""

from collections.abc import Iterable

from backends.engine.grammar import Constraint, GrammarError


class Draft:
    """Tokens that would follow all that a sequence has, and where each of them would leave it in its grammar."""

    def __init__(
        self,
        tokens: Iterable[int] = (),
        ends: frozenset[int] = frozenset(),
        constraint: Constraint | None = None,
    ) -> None:
        """`constraint`: where the sequence stands in its grammar.

        The draft is cut before a token of `ends`, or one that the grammar forbids or ends with: the step that verifies
        what is before it says itself what comes there.
        """
        self.tokens: list[int] = []
        self.constraints: list[Constraint] = []  # after each of `tokens`, where there is a grammar
        self._ends, self._constraint = ends, constraint
        for token in tokens:
            if not self.add(token):
                break

    def add(self, token: int) -> bool:
        """One more; False where the draft is cut before it."""
        if token in self._ends:
            return False
        if self._constraint is not None:
            after = _after(self.constraints[-1] if self.constraints else self._constraint, token)
            if after is None:
                return False
            self.constraints.append(after)
        self.tokens.append(token)
        return True

    def follow(self, token: int) -> Constraint | None:
        """The sequence has got `token`. Where that was foreseen and has a place in the grammar, that place.

        A draft that was wrong is over.
        """
        if not self.tokens or self.tokens[0] != token:
            self.tokens, self.constraints = [], []
            return None
        del self.tokens[0]
        return self.constraints.pop(0) if self.constraints else None


def _after(constraint: Constraint, token: int) -> Constraint | None:
    """None where the token may not come, or nothing may come after it."""
    if not constraint.permits(token):
        return None
    after = constraint.copy()
    try:
        after.accept(token)
    except GrammarError:
        return None
    return None if after.complete else after
