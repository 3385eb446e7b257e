"""The story of a request over scripted backends and real stores: what is reserved, settled and remembered."""

import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backends.backend import Delta, Rejected
from backends.prompt import ChatMessage, Prompt
from backends.wire import Grammar
from classifier import Assessment
from gateway.config import Limits, Policy
from gateway.errors import ApiError, as_api_error
from gateway.tenants import engine_tag
from prefixcache.affinity import block_keys
from tests.gateway.story.in_the_hand import Gateway

Make = Callable[..., Any]
SALT = b"salt of acme"


async def test_an_answer_and_what_it_costs(gateway: Gateway) -> None:
    answer = await gateway.run("Who are you?", max_tokens=7)
    async with aclosing(answer.deltas):
        assert [delta.text async for delta in answer.deltas] == ["Hello", " world"]
    assert (answer.tier, answer.session) == ("7b", None)
    assert answer.headers["x-headrace-reason"] == "7b: p=0.90 >= 0.70, 0 of 12 prompt tokens cached"
    assert answer.headers["x-headrace-task"] == "qa"
    assert gateway.limits.reserved == [12 + 7]
    assert gateway.limits.settled == [5 + 2]  # what the backend reported
    assert gateway.classifier.asked == ["Who are you?"]


async def test_an_engine_learns_of_what_kind_a_request_is(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    """By the client's word, else by the classifier's; nobody has one where the tier is named."""
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    for asked in ({}, {"task": "code"}, {"model": "7b"}, {"model": "7b", "task": "summarization"}):
        await gateway.say("Who are you?", **asked)
    assert [generation.task for generation in one.seen] == ["qa", "code", "", "summarization"]
    await gateway.sessions.close()


async def test_an_engine_learns_how_urgent_it_is_and_whose_without_a_name(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("Hello", traffic="batch", priority=3)
    await gateway.say("Hello", session="new")
    alone, first = one.seen
    assert (alone.traffic, alone.priority, alone.weight, alone.session) == ("batch", 3, 2.5, "")
    assert first.traffic == "interactive" and first.session not in ("", "new")
    assert alone.tenant == first.tenant == engine_tag(SALT) != "acme"
    await gateway.sessions.close()


async def test_a_request_without_max_tokens_reserves_the_default_and_gets_no_more(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    one = backend("7b/0", context_length=60)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("12345")
    await gateway.say("x" * 40)  # leaves room for 20
    assert gateway.limits.reserved == [5 + 50, 40 + 20]
    assert [generation.sampling.max_tokens for generation in one.seen] == [50, 20]


async def test_seeds_are_drawn_where_none_is_given(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0")
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    for seed in (None, None, 7):
        await gateway.say("Hi", seed=seed)
    first, second, third = (generation.sampling.seed for generation in one.seen)
    assert first != second
    assert third == 7
    assert one.seen[0].salt == SALT
    assert 9 < (one.seen[0].timeout or 0) <= 10


async def test_several_answers_are_reserved_for(tmp_path: Path, backend: Make, tier_of: Make) -> None:
    one = backend("7b/0", context_length=12)
    gateway = Gateway(tmp_path, [tier_of("7b", one)])
    await gateway.say("12345", max_tokens=7, n=3, logit_bias={4: 1.0}, logprobs=2, min_p=0.1)
    assert gateway.limits.reserved == [5 + 3 * 7]
    sampling = one.seen[0].sampling
    assert (sampling.n, sampling.logit_bias, sampling.logprobs, sampling.min_p) == (3, {4: 1.0}, 2, 0.1)
    await gateway.say("x" * 12, max_tokens=0)  # no answer needs no room
    assert gateway.limits.reserved[1] == 12
    assert one.seen[1].sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grammar": Grammar("regex", "(")}, "response_format: unclosed group"),
        ({"grammar": Grammar("regex", "("), "grammar_field": "text.format"}, "text.format: unclosed group"),
        ({}, "tools: unclosed group"),
    ],
)
@pytest.mark.parametrize("begun", [[], [Delta(text="{", tokens=1)]])
async def test_a_faulty_grammar_is_told_by_the_clients_name_for_it(
    tmp_path: Path, backend: Make, tier_of: Make, changes: dict[str, Any], message: str, begun: list[Delta]
) -> None:
    """At once, or when it proves to be too much in mid-answer."""
    script = [*begun, Rejected("grammar: unclosed group", "invalid")]
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", script))])
    with pytest.raises(Rejected) as error:
        await gateway.say("Hi", **changes)
    told = as_api_error(error.value)
    assert (told.status, told.message, told.param) == (400, message, message.partition(":")[0])


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (None, "tools: Unknown format: regex"),
        (Grammar("json_schema", "{}"), "response_format: Unknown format: regex"),
        (
            Grammar("lark", "start: x"),
            "response_format: at 6(14): failed to compile JSON schema: Unknown format: regex",
        ),
    ],
)
async def test_places_in_a_grammar_are_told_to_whoever_has_written_it(
    tmp_path: Path, backend: Make, tier_of: Make, grammar: Grammar | None, message: str
) -> None:
    fault = "grammar: at 6(14): failed to compile JSON schema: Unknown format: regex"
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", [Rejected(fault, "invalid")]))])
    with pytest.raises(Rejected) as error:
        await gateway.say("Hi", grammar=grammar)
    assert str(error.value) == message


async def test_names_and_aliases(gateway: Gateway) -> None:
    assert (await gateway.run("Hi", model="13b")).tier == "13b"
    assert (await gateway.run("Hi", model="big")).tier == "13b"
    assert (await gateway.run("Hi", model="gpt-4o")).tier == "7b"
    assert gateway.classifier.asked == ["Hi"]  # a tier that was named needs no assessment


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "gpt-5"}, 404, "model_not_found"),
        ({"model": "13b", "tiers": ("7b",)}, 403, "model_not_allowed"),
        ({"max_tokens": 990}, 400, "context_length_exceeded"),
        ({"prompt": Prompt(text="x" * 1000), "endpoint": "completions"}, 400, "context_length_exceeded"),
        ({"session": "sess_unknown"}, 404, "session_not_found"),
        ({"session": "new", "prompt": Prompt(text="x")}, 400, None),
        ({"limits": Limits(tokens_per_minute=10)}, 429, "request_too_large"),
    ],
)
async def test_refusals_consume_nothing(
    gateway: Gateway, changes: dict[str, Any], status: int, code: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        await gateway.run("x" * 20, **changes)
    assert (refused.value.status, refused.value.code) == (status, code)
    assert gateway.limits.reserved == gateway.limits.settled == []


async def test_a_prompt_too_long_says_both_numbers(gateway: Gateway) -> None:
    with pytest.raises(
        ApiError, match=r"maximum context length is 1000 .* 1200 tokens for the prompt and 5 "
    ):
        await gateway.run("x" * 1200, max_tokens=5)


async def test_a_hopeless_prompt_stays_small_and_a_hard_one_climbs(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    assert (await Gateway(tmp_path, tiers, good=(0.1, 0.12)).run("Hi")).tier == "7b"
    assert (await Gateway(tmp_path, tiers, good=(0.1, 0.4)).run("Hi")).tier == "13b"


async def test_the_replica_that_holds_the_prefix_is_taken(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0"), backend("7b/1"), block_size=4)])
    ids = [ord(character) for character in "Who are you?"]
    gateway.affinity.snapshot("7b/1", block_keys(SALT, ids[:8], 4))
    gateway.affinity.snapshot("7b/0", block_keys(b"another tenant's salt", ids, 4))
    answer = await gateway.run("Who are you?")
    assert answer.headers["x-headrace-reason"].endswith("8 of 12 prompt tokens cached")
    await answer.deltas.aclose()
    assert gateway.dispatcher.cards()[0].ready


async def test_a_tool_loop_keeps_its_tier_and_is_not_judged_again(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    gateway = Gateway(tmp_path, tiers, good=(0.1, 0.9))
    ask, call = ChatMessage("user", "The weather?"), ChatMessage("assistant", "(a call)")
    assert (await gateway.run(prompt=Prompt(messages=(ask,)))).tier == "13b"
    gateway.classifier.good = {"7b": 0.9, "13b": 0.9}
    loop = await gateway.run(prompt=Prompt(messages=(ask, call, ChatMessage("tool", "21 degrees"))))
    assert (loop.tier, loop.headers["x-headrace-reason"].split(",")[0]) == ("13b", "13b: keeps its tool loop")
    assert gateway.classifier.asked == ["The weather?"]
    assert 'headrace_route_decisions_total{reason="pinned",tier="13b"} 1.0' in gateway.scrape()
    spoken = await gateway.run(
        prompt=Prompt(messages=(ask, call, ChatMessage("tool", "21 degrees"), ChatMessage("user", "Thanks")))
    )
    assert spoken.tier == "7b"


async def test_shadow_policies_are_counted_and_logged(
    tmp_path: Path, backend: Make, tier_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tiers = [tier_of("7b", backend("7b/0")), tier_of("13b", backend("13b/0"))]
    gateway = Gateway(tmp_path, tiers, good=(0.6, 0.9), shadows={"frugal": Policy(floor=0.5)})
    with caplog.at_level("INFO", logger="gateway.dispatch"):
        assert (await gateway.run("Hi")).tier == "13b"
        gateway.classifier.good = {"7b": 0.9, "13b": 0.9}
        assert (await gateway.run("Hi")).tier == "7b"
    assert 'headrace_shadow_decisions_total{agrees="no",policy="frugal"} 1.0' in gateway.scrape()
    assert 'headrace_shadow_decisions_total{agrees="yes",policy="frugal"} 1.0' in gateway.scrape()
    assert caplog.messages == ["shadow policy frugal: request req_1 to 7b, not to 13b"]


async def test_a_long_prompt_is_judged_beside_the_event_loop(
    tmp_path: Path, backend: Make, tier_of: Make
) -> None:
    gateway = Gateway(tmp_path, [tier_of("7b", backend("7b/0", context_length=9000))])
    threads: list[int] = []
    judge = gateway.classifier.assess

    def assess(text: str) -> Assessment:
        threads.append(threading.get_ident())
        return judge(text)

    gateway.classifier.assess = assess  # type: ignore[method-assign]
    await gateway.say("Hi")
    await gateway.say("x" * 5000, limits=Limits())
    assert threads[0] == threading.get_ident() != threads[1]
