"""The state at a terminal: lines of styled text, cut to the width. Pure."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gateway.dashboard.state import Brief, ReplicaState, State, TenantState, TierState

BOLD, SOFT, GOOD, BAD = "1", "2", "32", "31"
TIER_COLOURS = ("36", "34", "35", "33", "32", "31")
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24
METER_WIDTH = 10
NOTHING = "–"

Piece = tuple[str, str]  # text, and its style as an SGR code, "" for plain
Line = list[Piece]


def render(state: State, width: int, height: int | None = None, *, colour: bool = True) -> str:
    """`width` and `height` (None: as many lines as there are) are in characters."""
    lines = [*_head(state), *_tiers(state), *_tenants(state.tenants, state.more_tenants), *_latest(state)]
    return "\n".join(_painted(line, width, colour) for line in lines[:height])


def _head(state: State) -> Iterator[Line]:
    health = ("All tiers answer.", GOOD)
    if state.draining:
        health = ("The gateway is leaving.", BAD)
    elif state.troubles:
        health = (" ".join(state.troubles), BAD)
    yield [("Headrace", BOLD), (f" {state.version}, up {_duration(state.uptime)}   ", SOFT), health]
    saved = (state.largest - state.spent) / state.largest if state.largest else None
    prompt = sum(tier.prompt_tokens for tier in state.tiers)
    cached = sum(tier.cached_tokens for tier in state.tiers)
    yield [
        (f"{state.running}", BOLD), (" running   ", SOFT),
        (f"{state.requests}", BOLD), (" requests   ", SOFT),
        (f"{state.failures}", BAD if state.failures else BOLD), (" failures   saved ", SOFT),
        (_percent(saved), BOLD), (f" ({_money(state.spent)} spent)   prompt cached ", SOFT),
        (_percent(cached / prompt if prompt else None), BOLD),
    ]  # fmt: skip


def _tiers(state: State) -> Iterator[Line]:
    yield []
    heads = f"{'TIER':<12}{'TAKEN':>7}{'FIRST':>9}{'p95':>9}{'TOK/S':>8}  {'LAST 10 MIN':<{SPARK_WIDTH}}{'COST':>12}"
    yield [(heads, SOFT)]
    first = [route for route in state.routes if not route.again]
    routed = sum(route.count for route in first)
    for number, tier in enumerate(state.tiers):
        taken = sum(route.count for route in first if route.tier == tier.name)
        yield _tier(tier, taken / routed if routed else None, TIER_COLOURS[number % len(TIER_COLOURS)])
        for replica in tier.replicas:
            yield _replica(replica)


def _tier(tier: TierState, taken: float | None, colour: str) -> Line:
    return [
        (f"{tier.name[:12]:<12}", f"1;{colour}" if tier.ready else BAD),
        (f"{_percent(taken):>7}{_seconds(tier.first_p50):>9}{_seconds(tier.first_p95):>9}", ""),
        (f"{tier.tokens_per_second:>8.1f}  ", ""),
        (f"{sparks(tier.series.tokens):<{SPARK_WIDTH}}", colour),
        (f"{_money(tier.cost):>12}", ""),
    ]


def _replica(replica: ReplicaState) -> Line:
    line = [
        (f"  {replica.name:<10} {replica.model[:28]:<28} ", SOFT),
        (f"{replica.condition:<9}", GOOD if replica.condition in ("up", "busy") else BAD),
        (f"{replica.in_flight:>4} running", ""),
    ]
    if replica.waiting is not None:
        line.append((f"{replica.waiting:>4} waiting", ""))
    if replica.kv_used is not None:
        full = "█" * round(replica.kv_used * METER_WIDTH)
        line += [("  KV ", SOFT), (f"{full:░<{METER_WIDTH}}", BAD if replica.kv_used > 0.9 else "")]
    if replica.hit_share is not None:
        line += [("  hits ", SOFT), (_percent(replica.hit_share), "")]
    if drafted := [f"{gate.task} {gate.tokens}" for gate in replica.gates if gate.tokens]:
        line += [("  drafts ", SOFT), (", ".join(drafted), "")]
    if replica.restarts:
        line.append((f"  {replica.restarts} restarts", BAD))
    return line


def _tenants(tenants: Sequence[TenantState], more: int) -> Iterator[Line]:
    yield []
    heads = ("REQUESTS/MIN", "TOKENS/MIN", "RUNNING", "REFUSED", "OF BUDGET", "COST")
    yield [(f"{'TENANT':<20}" + "".join(f"{head:>17}" for head in heads), SOFT)]
    for tenant in tenants:
        yield [
            (f"{tenant.name[:20]:<20}", BOLD),
            (_against(tenant.requests, tenant.requests_per_minute), ""),
            (_against(tenant.tokens, tenant.tokens_per_minute), ""),
            (_against(tenant.running, tenant.parallel), ""),
            (f"{tenant.refused:>17}", BAD if tenant.refused else ""),
            (_budget(tenant), ""),
            (f"{_money(tenant.cost):>17}", ""),
        ]
    if more > 0:
        yield [(f"{more} more, less busy", SOFT)]


def _budget(tenant: TenantState) -> str:
    """What is gone of the one of which most is gone."""
    budgets = (tenant.spent_of_day, tenant.per_day), (tenant.spent_of_month, tenant.per_month)
    gone = [spent / limit for spent, limit in budgets if limit is not None]
    return f"{_percent(max(gone, default=None)):>17}"


def _against(used: int, limit: int | None) -> str:
    return f"{used if limit is None else f'{used} of {limit}':>17}"


def _latest(state: State) -> Iterator[Line]:
    yield []
    yield [(f"{'ENDED':<10}{'TIER':<10}{'TIME':>9}{'FIRST':>9}{'TOKENS':>8}  WHY", SOFT)]
    names = [tier.name for tier in state.tiers]
    for brief in state.latest:
        yield _request(brief, names)


def _request(brief: Brief, names: Sequence[str]) -> Line:
    bad = brief.status >= 400 or brief.code is not None
    colour = TIER_COLOURS[names.index(brief.tier) % len(TIER_COLOURS)] if brief.tier in names else SOFT
    ended = time.strftime("%H:%M:%S", time.localtime(brief.at + brief.seconds))
    return [
        (f"{ended:<10}", SOFT),
        (f"{(brief.tier or NOTHING)[:9]:<10}", colour),
        (f"{_seconds(brief.seconds):>9}{_seconds(brief.first_text):>9}{brief.completion_tokens:>8}  ", ""),
        (f"{brief.status} {brief.code or ''} " if bad else "", BAD),
        (brief.reason or "", ""),
    ]


def sparks(values: Sequence[float]) -> str:
    """The last ten minutes in few characters, each as high as the mean of its part."""
    padded = [0.0] * (120 - len(values)) + list(values)
    edges = [round(at * len(padded) / SPARK_WIDTH) for at in range(SPARK_WIDTH + 1)]
    means = [sum(padded[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    top = max(means)
    if not top:
        return SPARKS[0] * SPARK_WIDTH
    return "".join(SPARKS[min(len(SPARKS) - 1, int(mean / top * len(SPARKS)))] for mean in means)


def _painted(line: Line, width: int, colour: bool) -> str:
    parts = []
    for text, style in line:
        text = text[:width]
        width -= len(text)
        parts.append(f"\x1b[{style}m{text}\x1b[0m" if colour and style and text else text)
    return "".join(parts).rstrip()


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def _money(amount: float) -> str:
    return f"{amount:.6f}".rstrip("0").rstrip(".") if amount else "0"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
