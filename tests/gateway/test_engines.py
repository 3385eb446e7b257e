"""What engines are started with: all that the configuration says of them."""

import os
from pathlib import Path
from typing import Literal

import pytest

from backends import wire
from backends.supervisor import Supervisor
from gateway.config import Band, Config, Engine, Speculation, Tier
from gateway.engines import Engines, engine_config
from gateway.metrics import Metrics
from gateway.weights import weights_of

# Fields that reach the engine in another shape, or are for whoever starts it.
HERE = ("model", "kv_tokens", "bands", "cores", "speculation", "quality_gate")


def test_an_engine_gets_what_the_configuration_says() -> None:
    engine = Engine(
        model="m", kv_tokens=3200, max_sequences=50, bands=(Band(rows=4, ttft_ms=90),), interactive_sequences=3,
        token_budget=99, step_budget_ms=12.5, max_waiting=7, max_waiting_tokens=1234, tenant_share=0.3,
        session_share=0.2, cores=5, tensor_parallel=2, dtype="float32", kv_cache="int8", max_model_len=800,
        speculation=Speculation(method="ngram", max_tokens=5, max_sequences=3),
    )  # fmt: skip
    made = engine_config("7b/0", engine, Path("/models/m"), "/run/x/3")
    for field in set(Engine.__struct_fields__) - set(HERE):
        assert getattr(made, field) == getattr(engine, field), field
    assert (made.model, made.kv_blocks, made.block_size, made.cores) == ("/models/m", 200, 16, 5)
    assert made.bands == (wire.Band(rows=4, ttft_ms=90),)
    assert made.speculation == wire.Speculation(method="ngram", max_tokens=5, max_sequences=3)
    assert (made.socket, made.lease) == ("/run/x/3.socket", "/run/x/cores.lease")


def test_a_model_that_drafts_is_found_where_the_others_are(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}")
    drafting = Speculation(method="both", draft=str(tmp_path / "small"), draft_quantization="int4")
    made = engine_config("7b/0", Engine(model="m", speculation=drafting), Path("m"), "/run/0")
    assert (made.speculation.draft, made.speculation.draft_quantization) == (str(tmp_path / "small"), "int4")
    config = Config(tiers=(Tier(name="7b", engines=(Engine(model="m", speculation=drafting),)),))
    assert config.models == ["m", str(tmp_path / "small")]


@pytest.mark.parametrize(("quantization", "dtype"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_whole_weights_are_what_the_engine_computes_in(
    quantization: Literal["bf16", "fp32"], dtype: Literal["bfloat16", "float32"]
) -> None:
    for engine in (
        Engine(model="m", quantization=quantization),
        Engine(model="m", quantization=quantization, dtype=dtype),
    ):
        made = engine_config("7b/0", engine, Path("m"), "/run/0")
        assert (made.quantization, made.dtype) == ("none", dtype)
        assert [each.format for each in weights_of(Tier(name="7b", engines=(engine,)))] == [dtype]


def test_the_configuration_and_the_engine_have_the_same_table_by_default() -> None:
    made = engine_config("7b/0", Engine(model="m"), Path("m"), "/run/0")
    assert (made.bands, made.speculation) == (wire.BANDS, wire.Speculation())


def test_an_engine_has_the_cores_that_its_gateway_may_run_on() -> None:
    """In a container, or under taskset, these are fewer than the machine has."""
    ours = os.sched_getaffinity(0)
    assert engine_config("7b/0", Engine(model="m"), Path("m"), "/run/0").cores == len(ours)
    os.sched_setaffinity(0, {min(ours)})
    try:
        assert engine_config("7b/0", Engine(model="m"), Path("m"), "/run/0").cores == 1
    finally:
        os.sched_setaffinity(0, ours)


def test_an_engine_that_never_comes_up_is_seen_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot say so itself, and this is what the alert on it goes by."""
    (tmp_path / "config.json").write_text("{}")
    metrics = Metrics(["7b"], {"7b/0": "m"}, [])
    config = Config(tiers=(Tier(name="7b", engines=(Engine(model=str(tmp_path)),)),))
    engines = Engines(config, metrics, lambda load: None)
    for restarts in (0, 3, 3, 4):
        monkeypatch.setattr(Supervisor, "restarts", {"7b/0": restarts})
        engines.refresh()
        assert metrics.totals().of("headrace_engine_restarts_total", engine="7b/0") == restarts
    engines.discard()
