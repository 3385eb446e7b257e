"""Figures of heads that were fitted on the graded answers that are measured; `classifier.refit` makes them."""

import msgspec

from classifier.ranking import Compared
from classifier.router import AllTiers


class FewLabels(msgspec.Struct, frozen=True, kw_only=True):
    """APGR on all other rows with heads fitted on `labels` rows, for each of several draws of these."""

    labels: int
    apgr: float
    draws: tuple[float, ...]


class LeftOut(Compared, frozen=True, kw_only=True):
    """A source that was left out of fitting. `ece`: the mean over the tiers; without doubt, of what the heads say."""

    ece: float
    ece_without_doubt: float


class Refitted(msgspec.Struct, frozen=True, kw_only=True):
    cross_validated: Compared
    all_tiers: AllTiers  # cross-validated too
    few_labels: FewLabels | None  # None where there are hardly more rows than that
    leave_one_source_out: dict[str, LeftOut]
