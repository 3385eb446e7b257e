"""The table of routes: who is taken, who follows on failure, and what the reason says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classifier import Assessment
from gateway.config import Price
from gateway.routing import NoRoute, Policy, Signals, TierSignals, choose, expected_cost, fits

PRICES = {"7b": 1.0, "13b": 3.0, "70b": 16.0}


def tier(
    name: str,
    *,
    available: bool = True,
    context: int = 1000,
    prompt: int = 100,
    cached: int = 0,
    load: float = 0.0,
) -> TierSignals:
    price = PRICES.get(name, 0.0)
    return TierSignals(
        name=name,
        available=available,
        context_length=context,
        prompt_tokens=prompt,
        cached_tokens=cached,
        price=Price(input=price, cached=price / 10, output=price),
        load=load,
    )


def good(small: float, middle: float, large: float) -> Assessment:
    return Assessment(task="qa", good={"7b": small, "13b": middle, "70b": large}, seconds=0.001)


THREE = (tier("7b"), tier("13b"), tier("70b"))


def auto(floor: float = 0.7, max_tokens: int | None = None) -> Policy:
    return Policy(tier=None, floor=floor, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("assessment", "order", "words"),
    [
        (good(0.81, 0.85, 0.9), ("7b", "13b", "70b"), "7b: p=0.81 >= 0.70"),
        (good(0.70, 0.85, 0.9), ("7b", "13b", "70b"), "7b: p=0.70 >= 0.70"),
        (good(0.60, 0.72, 0.9), ("13b", "70b", "7b"), "13b: p=0.72 >= 0.70"),
        (good(0.20, 0.30, 0.7), ("70b", "13b", "7b"), "70b: p=0.70 >= 0.70"),
        # nobody is good enough: climb only for a gain
        (good(0.10, 0.12, 0.14), ("7b", "13b", "70b"), "7b: p=0.10 < 0.70"),
        (good(0.10, 0.30, 0.32), ("13b", "70b", "7b"), "13b: p=0.30 < 0.70"),
        (good(0.10, 0.12, 0.40), ("70b", "13b", "7b"), "70b: p=0.40 < 0.70"),
    ],
)
def test_auto_takes_the_cheapest_tier_that_is_good_enough(
    assessment: Assessment, order: tuple[str, ...], words: str
) -> None:
    route = choose(Signals(tiers=THREE, assessment=assessment), auto())
    assert route.order == order
    assert route.reason.startswith(words)
    assert route.assessment is assessment


def test_a_tier_that_does_not_answer_is_left_out_and_named() -> None:
    tiers = (tier("7b", available=False), tier("13b"), tier("70b"))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.order == ("13b", "70b")
    assert "7b not available" in route.reason


def test_a_prompt_too_long_for_the_small_tier_goes_to_one_that_holds_it() -> None:
    tiers = (tier("7b", context=150), tier("13b", context=150), tier("70b", context=9000))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto(max_tokens=51))
    assert route.order == ("70b",)


def test_a_prompt_that_fits_nowhere_names_the_longest_context() -> None:
    tiers = (tier("7b", context=50), tier("70b", context=99))
    with pytest.raises(NoRoute) as refused:
        choose(Signals(tiers=tiers, assessment=None), auto())
    assert refused.value.longest is tiers[1]


def test_nobody_answers() -> None:
    tiers = tuple(tier(name, available=False) for name in ("7b", "13b"))
    with pytest.raises(NoRoute, match="no replica of 7b or 13b answers") as refused:
        choose(Signals(tiers=tiers, assessment=None), auto())
    assert refused.value.longest is None


def test_a_named_tier_is_taken_as_it_is_and_fails_over_to_no_other() -> None:
    policy = Policy(tier="13b", floor=0.99, max_tokens=None)
    route = choose(Signals(tiers=THREE, assessment=None), policy)
    assert route.order == ("13b",)
    assert route.reason == "13b: requested, 0 of 100 prompt tokens cached"


def test_tiers_that_the_artefact_does_not_know_are_not_guessed_at() -> None:
    tiers = (tier("small"), tier("large"))
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.order == ("small", "large")
    assert "no estimate" in route.reason


@pytest.mark.parametrize("policy", [auto(), auto(0.95), Policy(weight=10.0), Policy(weight=10.0, floor=0.95)])
def test_an_estimate_that_is_no_number_is_none(policy: Policy) -> None:
    nan = float("nan")
    route = choose(Signals(tiers=THREE, assessment=good(nan, nan, 0.9)), policy)
    assert route.order[0] == "70b" and "nan" not in route.reason
    route = choose(Signals(tiers=THREE, assessment=good(nan, nan, nan)), policy)
    assert route.reason.startswith("7b: no estimate, the cheapest")


@pytest.mark.parametrize(("tiers", "named"), [((), None), (THREE, "huge")])
def test_where_no_tier_is_left_there_is_no_route(tiers: tuple[TierSignals, ...], named: str | None) -> None:
    with pytest.raises(NoRoute, match="none may take the request"):
        choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), Policy(tier=named))


def test_the_reason_says_how_much_of_the_prompt_is_cached() -> None:
    tiers = (tier("7b", prompt=131, cached=112),)
    route = choose(Signals(tiers=tiers, assessment=good(0.9, 0.9, 0.9)), auto())
    assert route.reason.endswith("112 of 131 prompt tokens cached")
    assert route.reason.isascii()
    assert route.reason.isprintable()


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [(999, None, True), (1000, None, False), (900, 100, True), (900, 101, False)],
)
def test_fits_counts_prompt_and_answer(prompt: int, max_tokens: int | None, expected: bool) -> None:
    assert fits(tier("7b", context=1000, prompt=prompt), max_tokens) is expected


def weighing(weight: float, floor: float | None = None) -> Policy:
    return Policy(weight=weight, floor=floor, goal="cost_share 0.3")


@pytest.mark.parametrize(
    ("weight", "floor", "taken"),
    [
        (0.0, None, "70b"),  # only quality counts
        (1e9, None, "7b"),  # only cost counts
        (0.3 / (13e-6 * 356), None, "13b"),  # 70b gains 0.2 for 13 units, 13b gains 0.3 for 2
        (1e9, 0.6, "13b"),  # the least costly that reaches the floor
        (1e9, 0.95, "7b"),  # nobody does
    ],
)
def test_a_weight_trades_quality_for_cost(weight: float, floor: float | None, taken: str) -> None:
    route = choose(Signals(tiers=THREE, assessment=good(0.4, 0.7, 0.9)), weighing(weight, floor))
    assert route.order[0] == taken


def test_the_reason_of_a_weighed_route_names_goal_and_cost() -> None:
    route = choose(Signals(tiers=THREE, assessment=good(0.4, 0.7, 0.9)), weighing(1e9))
    assert (
        route.reason == "7b: p=0.40 at 6% of the highest cost, cost_share 0.3, 0 of 100 prompt tokens cached"
    )


def test_a_cached_prefix_can_make_the_dearer_tier_the_cheaper_one() -> None:
    """13b has the conversation, 7b would have to read all of it."""
    tiers = (tier("7b", context=9000, prompt=8000), tier("13b", context=9000, prompt=8000, cached=7900))
    route = choose(Signals(tiers=tiers, assessment=good(0.8, 0.85, 0.9)), auto())
    assert route.reason == "13b: p=0.85 >= 0.70, 7,900 of 8,000 prompt tokens cached"


def test_a_queue_costs() -> None:
    near = (tier("7b", load=3.0), tier("13b"))
    assert choose(Signals(tiers=near, assessment=good(0.8, 0.9, 0.9)), auto()).order[0] == "13b"
    near = (tier("7b", load=1.0), tier("13b"))
    assert choose(Signals(tiers=near, assessment=good(0.8, 0.9, 0.9)), auto()).order[0] == "7b"


def test_an_open_tool_loop_keeps_its_tier_unless_that_cannot_go_on() -> None:
    signals = Signals(tiers=THREE, assessment=None, pinned="13b")
    route = choose(signals, auto())
    assert (route.order, route.assessment) == (("13b", "70b", "7b"), None)
    assert route.reason == "13b: keeps its tool loop, 0 of 100 prompt tokens cached"
    tiers = (tier("7b"), tier("13b", available=False), tier("70b"))
    moved = choose(Signals(tiers=tiers, assessment=good(0.1, 0.2, 0.9), pinned="13b"), auto())
    assert moved.order[0] == "70b" and "13b not available" in moved.reason


probability = st.floats(0, 1)


@st.composite
def situations(draw: st.DrawFn) -> Signals:
    tiers = tuple(
        tier(
            name,
            available=draw(st.booleans()),
            context=draw(st.integers(50, 400)),
            prompt=(prompt := draw(st.integers(1, 300))),
            cached=draw(st.integers(0, prompt - 1)),
            load=draw(st.floats(0, 4)),
        )
        for name in PRICES
    )
    assessment = draw(st.none() | st.builds(good, probability, probability, probability))
    return Signals(tiers=tiers, assessment=assessment, pinned=draw(st.sampled_from([None, *PRICES])))


policies = st.builds(
    Policy,
    tier=st.sampled_from([None, *PRICES]),
    floor=st.none() | probability,
    weight=st.none() | st.floats(0, 1e9),
    max_tokens=st.none() | st.integers(1, 200),
)


@given(situations(), policies)
def test_whoever_is_taken_fits_and_answers(signals: Signals, policy: Policy) -> None:
    by_name = {each.name: each for each in signals.tiers}
    able = {n for n, each in by_name.items() if each.available and fits(each, policy.max_tokens)}
    try:
        route = choose(signals, policy)
    except NoRoute:
        assert not able or policy.tier not in (None, *able)
        return
    assert set(route.order) <= able and len(set(route.order)) == len(route.order)
    assert route.order == (policy.tier,) if policy.tier else set(route.order) == able
    assert route.reason.isascii() and route.reason.isprintable()
    assert route == choose(signals, policy)  # nothing but these decides


@given(situations(), st.floats(0, 1e6), st.floats(0, 1e6), st.none() | probability)
def test_a_heavier_weight_never_costs_more(
    signals: Signals, one: float, other: float, floor: float | None
) -> None:
    cost = {each.name: expected_cost(each, None) for each in signals.tiers}
    try:
        light, heavy = (choose(signals, weighing(w, floor)).order[0] for w in sorted((one, other)))
    except NoRoute:
        return
    if signals.assessment is not None:
        assert cost[heavy] <= cost[light] * (1 + 1e-9) or heavy == signals.pinned


@given(situations(), st.floats(0.01, 1))
def test_who_is_taken_by_the_floor_reaches_it_if_anybody_does(signals: Signals, floor: float) -> None:
    try:
        taken = choose(signals, auto(floor)).order[0]
    except NoRoute:
        return
    if signals.assessment is None or taken == signals.pinned:
        return
    estimates = signals.assessment.good
    able = [each for each in signals.tiers if each.available and fits(each, None)]
    reaching = {each.name: expected_cost(each, None) for each in able if estimates[each.name] >= floor}
    if reaching:
        assert taken in reaching and reaching[taken] == min(reaching.values())
