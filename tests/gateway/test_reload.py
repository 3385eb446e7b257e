"""Which changes are taken, and that a refused one changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from gateway.config import Cascade, Config, Key, Limits, Price, Remote, Server, State, Telemetry, Tenant, Tier
from gateway.metrics import Metrics
from gateway.reload import Apply, NoPrevious, Reloads, RestartNeeded, differences

SEVEN = Tier(name="7b", remotes=(Remote(url="http://127.0.0.1:9/v1", model="m"),))
BASE = Config(tiers=(SEVEN,), tenants=(Tenant(name="acme"),))


class Bench:
    """A gateway that only notes what holds; `found` is what would be read next."""

    def __init__(self) -> None:
        self.found: Config | Exception = BASE
        self.held = BASE
        self.bad: str | None = None
        self.metrics = Metrics(["7b"], {}, ["acme"])
        self.reloads = Reloads(BASE, self.read, self.prepare, self.metrics)

    def read(self) -> Config:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def prepare(self, config: Config) -> Apply:
        if self.bad is not None:
            raise ValueError(self.bad)

        async def apply() -> None:
            self.held = config

        return apply

    @property
    def counted(self) -> dict[str, float]:
        lines = self.metrics.render().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("headrace_config_"))
        return {name: float(value) for name, value in pairs}


@pytest.fixture
async def bench() -> Bench:
    return Bench()


def with_tier(**changes: Any) -> Config:
    return structs.replace(BASE, tiers=(structs.replace(SEVEN, **changes),))


@pytest.mark.parametrize(
    "config",
    [
        structs.replace(BASE, tenants=()),
        structs.replace(BASE, tenants=(Tenant(name="acme", limits=Limits(parallel=1)), Tenant(name="b"))),
        structs.replace(BASE, tenants=(Tenant(name="acme", keys=(Key(prefix="p", digest="a" * 64),)),)),
        structs.replace(BASE, aliases={"gpt-4o": "auto"}),
        structs.replace(BASE, telemetry=Telemetry(log_level="debug")),
        structs.replace(BASE, state=State(session_ttl=60.0)),
        with_tier(price=Price(input=2.0, output=3.0)),
        with_tier(cascade=Cascade(when="end", threshold=0.8)),
        structs.replace(BASE, anonymous=Tenant(name="a")),
        with_tier(remotes=(structs.replace(SEVEN.remotes[0], api_key_file="key", read_timeout=5.0),)),
    ],
)
async def test_what_may_change_while_requests_run(bench: Bench, config: Config) -> None:
    before = bench.reloads.version
    bench.found = config
    after = await bench.reloads.reload()
    assert bench.held is config
    assert (before.number, before.rollback, after.number, after.rollback) == (1, False, 2, True)
    assert after.digest != before.digest
    assert bench.counted["headrace_config_version"] == 2


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (structs.replace(BASE, server=Server(port=1)), ("server.port",)),
        (structs.replace(BASE, state=State(redis="redis://h")), ("state.redis",)),
        (structs.replace(BASE, tiers=(SEVEN, Tier(name="70b"))), ("tiers",)),
        (
            with_tier(remotes=(structs.replace(SEVEN.remotes[0], url="http://127.0.0.1:8/v1"),)),
            ("tiers[0].remotes[0].url",),
        ),
        (structs.replace(BASE, secret_env="X", tenants=()), ("secret_env",)),
        (structs.replace(BASE, calibration="c.json"), ("calibration",)),
        (structs.replace(BASE, billing="answer"), ("billing",)),
        (
            with_tier(remotes=(structs.replace(SEVEN.remotes[0], model="other"),), price=Price(input=1)),
            ("tiers[0].remotes[0].model",),
        ),
    ],
)
async def test_what_needs_a_restart_is_refused_by_name_and_nothing_of_it_is_taken(
    bench: Bench, config: Config, fields: tuple[str, ...]
) -> None:
    bench.found = config
    before = bench.reloads.version
    with pytest.raises(RestartNeeded) as refused:
        await bench.reloads.reload()
    assert refused.value.fields == fields
    assert (bench.held, bench.reloads.version) == (BASE, before)
    assert bench.counted['headrace_config_reloads_total{result="failure"}'] == 1
    assert bench.counted["headrace_config_version"] == 1


def unreadable(bench: Bench) -> None:
    bench.found = ValueError("line 3: no such tier")


def unfit(bench: Bench) -> None:
    bench.bad = "acme and umbrella share the key hr_12345..."


@pytest.mark.parametrize("spoil", [unreadable, unfit])
async def test_what_cannot_be_read_or_does_not_fit_leaves_the_previous_one(
    bench: Bench, spoil: Callable[[Bench], None], caplog: pytest.LogCaptureFixture
) -> None:
    bench.found = structs.replace(BASE, tenants=())
    spoil(bench)
    with pytest.raises(ValueError):
        await bench.reloads.reload()
    assert (bench.held, bench.reloads.version.number) == (BASE, 1)
    assert "is not taken" in caplog.text


async def test_one_step_back_and_back_again(bench: Bench) -> None:
    first = bench.reloads.version.digest
    with pytest.raises(NoPrevious):
        await bench.reloads.rollback()
    bench.found = changed = structs.replace(BASE, tenants=())
    second = (await bench.reloads.reload()).digest
    back = await bench.reloads.rollback()
    assert (bench.held, back.number, back.digest) == (BASE, 3, first)
    assert (await bench.reloads.rollback()).digest == second
    assert bench.held is changed


async def test_differences_are_the_least_parts() -> None:
    other = structs.replace(BASE, aliases={"a": "7b"}, tenants=(Tenant(name="acme", priority=3),))
    assert set(differences(BASE, other)) == {("aliases",), ("tenants", 0, "priority")}
    assert not list(differences(BASE, BASE))
