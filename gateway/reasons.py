"""Why a tier has answered, in words for the header `x-headrace-reason`: printable ASCII, no prompt text."""

from gateway.cascade import Attempt
from gateway.request import Route


def reason(route: Route, attempt: Attempt) -> str:
    """The route's reason, with what was found of answers on the way."""
    first, tier = route.order[0], attempt.tier.name
    wanting = [verdict for verdict in attempt.verdicts if not verdict.kept]
    own = next((verdict for verdict in attempt.verdicts if verdict.tier == tier), None)
    words = route.reason if tier == first else f"({route.reason})"
    if own is not None and not own.kept:
        return f"{tier}: no dearer tier has answered, its own answer {own}; {words}"
    if wanting:
        passed = ", ".join(f"{verdict.tier} ({verdict})" for verdict in wanting)
        found = "" if own is None else f", {own}"
        return f"{tier}: escalated from {passed}{found} {words}"
    if tier != first:
        return f"{tier}: failover from {first} {words}"
    return words if own is None else f"{words}; its answer {own}"
