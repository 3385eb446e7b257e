"""Calls that must be, of a model that knows nothing: random weights, in the real engine, at temperature 1."""

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import tokenizers
import torch

from backends.backend import Delta, Sampling
from backends.deltas import DeltaReader
from backends.engine.engine import Engine
from backends.engine.grammar import GrammarCompiler
from backends.engine.runner import load_runner
from backends.prompt import ChatMessage, Prompt, Tool, ToolCall, ToolChoice
from backends.tokenizer import Tokenizer
from backends.tools.calls import joined
from backends.tools.constraint import constrained
from backends.tools.formats import FORMATS
from backends.tools.parser import CallParser
from backends.wire import EngineConfig, Submit, Vocabulary

BEGIN, END, EOS = 256, 257, 258
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (Tool("weather", "Of a city", WEATHER), Tool("now", parameters=NOTHING))


class Model:
    """An engine, and a tokenizer with a token for each byte, for each mark, and one that ends an answer."""

    def __init__(self, weights: Path, byte_model: Path, folder: Path) -> None:
        known = tokenizers.Tokenizer.from_file(str(byte_model / "tokenizer.json"))
        known.add_tokens(["<tool_call>", "</tool_call>"])
        known.add_special_tokens(["<end>"])
        known.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode({"chat_template": "{{ tools }}"}))
        self.tokenizer = Tokenizer(folder)
        config = EngineConfig(
            name="e", model=str(weights), socket="", vocabulary="", dtype="float32", kv_blocks=512
        )
        runner, _, size, length = load_runner(config, 259)
        vocabulary = Vocabulary(self.tokenizer.vocabulary(), self.tokenizer.names())
        compiler = GrammarCompiler(vocabulary, frozenset({EOS}), size)
        self.engine = Engine(
            config, runner, vocabulary.data, frozenset({EOS}), size, length, compile=compiler.compile
        )

    def answer(
        self, choice: ToolChoice, seed: int, tools: tuple[Tool, ...] = TOOLS, **more: Any
    ) -> list[Delta]:
        prompt = Prompt(messages=(ChatMessage("user", "?"),), tools=tools, tool_choice=choice)
        sampling = constrained(
            Sampling(seed=seed, **{"max_tokens": 1000, **more}), prompt, FORMATS[0], self.tokenizer.id_of
        )
        ids = list(b"Call!")
        reader = DeltaReader(
            "e", ids, sampling, self.tokenizer, lambda: CallParser(FORMATS[0], parallel=choice.parallel)
        )
        assert self.engine.submit(b"gw", Submit(id="g", prompt=ids, sampling=sampling)) is None
        deltas = []
        while self.engine.has_work:
            for _, output in self.engine.step():
                deltas.append(reader.take(output))
            self.engine.check()
            time.sleep(0.001)  # for the thread that compiles
        return [delta for delta in deltas if delta is not None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, byte_model: Path, write_gguf: Any) -> Model:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("calls")
    metadata = {"llama.context_length": 2048}
    return Model(write_gguf(folder / "small.gguf", metadata=metadata), byte_model, folder)


def calls_of(deltas: list[Delta]) -> tuple[ToolCall, ...]:
    assert deltas[-1].finish == "tool_calls" and deltas[-1].usage is not None
    assert not "".join(delta.text for delta in deltas)
    calls = joined(piece for delta in deltas for piece in delta.calls)
    for call in calls:
        jsonschema.validate(
            json.loads(call.arguments), {tool.name: tool.parameters for tool in TOOLS}[call.name] or {}
        )
    return calls


@pytest.mark.parametrize("seed", range(3))
def test_a_named_tool_is_called_once(model: Model, seed: int) -> None:
    (call,) = calls_of(model.answer(ToolChoice("required", "weather"), seed))
    assert call.name == "weather"


@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_of_any_tool(model: Model, seed: int) -> None:
    assert calls_of(model.answer(ToolChoice("required"), seed))


@pytest.mark.parametrize("seed", range(3))
def test_there_is_one_call_where_only_one_may_be(model: Model, seed: int) -> None:
    assert len(calls_of(model.answer(ToolChoice("required", parallel=False), seed))) == 1


def test_each_of_several_answers_calls(model: Model) -> None:
    deltas = model.answer(ToolChoice("required", "weather"), 5, n=3, logprobs=1)
    for index in range(3):
        own = [delta for delta in deltas if delta.index == index]
        (call,) = joined(piece for delta in own for piece in delta.calls)
        jsonschema.validate(json.loads(call.arguments), WEATHER)
        assert own[-1].finish == "tool_calls"
        spelled = b"".join(score.data for delta in own for score in delta.scores).decode()
        assert call.arguments in spelled  # the tokens of calls are told too


def test_where_no_call_may_be_none_begins(model: Model) -> None:
    bias = {BEGIN: 100.0}
    free = model.answer(ToolChoice("auto"), 1, logit_bias=bias, max_tokens=40)
    assert "<tool_call>" in "".join(delta.text for delta in free)  # it would, if it could
    forbidden = model.answer(ToolChoice("none"), 1, logit_bias=bias, max_tokens=40)
    assert "<tool_call>" not in "".join(delta.text for delta in forbidden)


def test_strict_tools_are_called_by_their_schema_though_nobody_must(model: Model) -> None:
    strict = tuple(msgspec.structs.replace(tool, strict=True) for tool in TOOLS)
    deltas = model.answer(ToolChoice("auto", parallel=False), 2, strict, logit_bias={BEGIN: 100.0})
    assert deltas[-1].finish == "tool_calls"
    (call,) = joined(piece for delta in deltas for piece in delta.calls)
    jsonschema.validate(json.loads(call.arguments), {"weather": WEATHER, "now": NOTHING}[call.name])
