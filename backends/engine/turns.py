"""Whose turn it is among tenants: deficit round robin, counted in tokens.

As M. Shreedhar and G. Varghese have it, "Efficient Fair Queueing Using Deficit Round Robin" (SIGCOMM 1995), with two
changes. Credit is needed to begin and not to finish, since nobody knows how long an answer will be: whoever uses more
than he has owes it. And tokens only count while two tenants want more than there is: nobody pays later for what
would have been idle.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self


@dataclass(slots=True)
class _Account:
    weight: float
    credit: float


@dataclass(slots=True)
class Turns:
    """The accounts of all tenants that have work, in the order of their turns. Every call is O(tenants)."""

    quantum: int  # tokens that a weight of 1 is credited each round
    # Tenants that want something, though they may find no room for it now.
    waiting: frozenset[str] = frozenset()
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def copy(self) -> Self:
        """To try something out."""
        accounts = {tenant: _Account(each.weight, each.credit) for tenant, each in self._accounts.items()}
        return type(self)(self.quantum, self.waiting, accounts)

    def enter(self, tenant: str, weight: float) -> None:
        """A tenant has work. A new one is on a par with the best off of the others and has the next turn: who asks
        now and then hardly waits for those who always do, as with the new flows of RFC 8290."""
        account = self._accounts.get(tenant)
        if account is None:
            par = max((each.credit / each.weight for each in self._accounts.values()), default=0.0)
            self._accounts = {tenant: _Account(weight, par * weight), **self._accounts}
        else:
            account.weight = weight

    def keep(self, tenants: Collection[str]) -> None:
        """Forget all others."""
        for tenant in self._accounts.keys() - tenants:
            del self._accounts[tenant]
        self.waiting = self.waiting.intersection(tenants)

    def next(self, contenders: Collection[str]) -> str:
        """Whose turn it is among `contenders`, which are not empty and have all entered. It stays so until charged.

        While one of `waiting` has credit and cannot use it, others go on in his stead, and owe what they use.
        """
        wanting = [self._accounts[tenant] for tenant in self.waiting.union(contenders)]
        if not any(account.credit > 0 for account in wanting):
            self._refill(wanting)
        ready = (t for t, each in self._accounts.items() if t in contenders and each.credit > 0)
        turn = next(ready, None)
        return max(contenders, key=self._standing) if turn is None else turn

    def _standing(self, tenant: str) -> tuple[float, str]:
        account = self._accounts[tenant]
        return account.credit / account.weight, tenant

    def charge(self, tenant: str, tokens: int) -> None:
        """Who has used up his credit goes to the end of the line."""
        account = self._accounts[tenant]
        account.credit -= tokens
        if account.credit <= 0:
            self._accounts[tenant] = self._accounts.pop(tenant)

    def settle(self) -> None:
        """Nobody had to go without: all are even."""
        for account in self._accounts.values():
            account.credit = 0.0

    def _refill(self, accounts: Iterable[_Account]) -> None:
        """As many rounds at once as it takes until somebody has credit; nobody then has more than one round's."""
        rounds = min(-account.credit // (self.quantum * account.weight) + 1 for account in accounts)
        for account in accounts:
            account.credit += rounds * self.quantum * account.weight
