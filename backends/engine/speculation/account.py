"""What drafting may cost, whoever drafts: an account for each kind of task, in steps without drafts.

A small share of every step is put on it, and what drafts have saved; what they cost, and what a drafter has to read
for them, is taken from it. Nothing is tried while it is empty, and what does not pay ends where it is overdrawn. So
whatever is accepted, and however many ways there are to draft, the steps lost are at most ALLOWANCE of all, OPENING +
OVERDRAFT, and what was under way when that was reached.
"""

ALLOWANCE = 0.01  # of a step that each one puts on the account, for the sake of finding out
OPENING, MOST = 2.0, 32.0  # steps that are on the account at first, and at most
OVERDRAFT = 2.0  # steps that may be owed for drafts that have paid before


class Account:
    """Begins with enough for a few drafts."""

    def __init__(self) -> None:
        self.balance = OPENING

    def allow(self) -> None:
        """One more step is to run."""
        self.earn(ALLOWANCE)

    def earn(self, steps: float) -> None:
        """Negative: so many were lost."""
        self.balance = min(self.balance + steps, MOST)

    @property
    def empty(self) -> bool:
        return self.balance < 0

    @property
    def overdrawn(self) -> bool:
        return self.balance < -OVERDRAFT
