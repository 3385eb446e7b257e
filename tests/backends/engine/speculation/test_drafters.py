"""The drafters that an engine is started with, and the models that cannot be one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.engine.runner import load_runner
from backends.engine.speculation import drafters
from backends.engine.speculation.drafters import drafters_for
from backends.wire import EngineConfig, Speculation

SIZE = 288  # tokens of the small model


@pytest.fixture
def config(write_gguf: Callable[..., Path], tmp_path: Path) -> Callable[..., EngineConfig]:
    model = str(write_gguf(tmp_path / "model.gguf", "llama", "F32"))

    def make(method: str, **fields: Any) -> EngineConfig:
        speculation = Speculation(method=method, draft=model, **fields)  # type: ignore[arg-type]
        return EngineConfig(
            name="e", model=model, socket="", vocabulary="", dtype="float32", kv_blocks=8,
            speculation=speculation,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("method", "found"),
    [("off", []), ("ngram", ["ngram"]), ("draft", ["draft"]), ("both", ["ngram", "draft"])],
)
def test_what_costs_nothing_is_asked_first(
    config: Callable[..., EngineConfig], method: str, found: list[str]
) -> None:
    assert [drafter.method for drafter in drafters_for(config(method), SIZE)] == found


def test_a_model_with_fewer_tokens_is_refused(config: Callable[..., EngineConfig]) -> None:
    with pytest.raises(ValueError, match=r"speculation\.draft: .*model\.gguf has 288 tokens, the model 300"):
        drafters_for(config("draft"), 300)


@pytest.mark.parametrize(("asked", "used"), [(None, "none"), ("int8", "int8")])
def test_its_weights_have_a_format_of_their_own(
    config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch, asked: str | None, used: str
) -> None:
    formats = []

    def watched(config: EngineConfig, vocab_size: int) -> Any:
        formats.append(config.quantization)
        return load_runner(config, vocab_size)

    monkeypatch.setattr(drafters, "load_runner", watched)
    drafters_for(config("draft", draft_quantization=asked), SIZE)
    assert formats == [used]
