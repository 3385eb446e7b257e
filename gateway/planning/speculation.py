"""What a draft model can be expected to bring."""

from gateway.planning.replica import Replica


def expected_tokens(acceptance: float, drafted: int) -> float:
    """E(α, N) = (1 - α^(N+1)) / (1 - α): tokens that a step of verifying N drafted ones gives, where each is accepted
    with probability α if those before it were, and the target adds one (arXiv:2211.17192, equation 1)."""
    if acceptance == 1:
        return drafted + 1.0
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def speedup(replica: Replica, batch: int, context: int) -> float:
    """E(α, N) · step / (verification of N + 1 rows + N steps of the draft). `replica` has a draft."""
    drafter, drafted = replica.drafter, replica.given.draft_tokens
    assert drafter is not None
    spent = replica.step(batch, context, rows=drafted + 1) + drafted * drafter.step(batch, context)
    return expected_tokens(replica.given.acceptance, drafted) * replica.step(batch, context) / spent
