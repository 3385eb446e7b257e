"""Tools on an engine of our own: what it is sent, and what is made of what it says. The engine repeats its prompt."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers

from backends.backend import Delta, Generation, Rejected, Sampling
from backends.local import LocalBackend
from backends.prompt import ChatMessage, Prompt, Tool, ToolChoice
from backends.supervisor import Supervisor
from backends.tokenizer import Tokenizer
from backends.tools.calls import joined
from backends.wire import EngineConfig, Grammar

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "</tool_call>{% endfor %}{% endfor %}{{ tools | tojson }}"
)
ADD = Tool("add", parameters={"type": "object"})
MARKED = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
BARE = '{"name": "add", "arguments": {"a": 1}}'
AUTO = ToolChoice()
CALL = [("add", '{"a": 1}')]


@pytest.fixture
def knowing(byte_model: Path, tmp_path: Path) -> Tokenizer:
    """A tokenizer with a token for each byte and one for each mark, and a template that tells of tools."""
    bytes_only = tokenizers.Tokenizer.from_file(str(byte_model / "tokenizer.json"))
    bytes_only.add_tokens(["<tool_call>", "</tool_call>"])
    bytes_only.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_bytes(msgspec.json.encode({"chat_template": TEMPLATE}))
    return Tokenizer(tmp_path)


@pytest.fixture
async def connect(
    engine_config: Callable[..., EngineConfig], fake_command: list[str]
) -> AsyncIterator[Callable[..., Any]]:
    config = engine_config(model="quick")
    async with Supervisor([config], command=fake_command):
        backends: list[LocalBackend] = []

        async def make(tokenizer: Tokenizer) -> LocalBackend:
            backends.append(LocalBackend(config, tokenizer, 8192, lambda event: None))
            await backends[-1].start()
            return backends[-1]

        yield make
        for backend in backends:
            await backend.close()


def says(text: str, *tools: Tool, choice: ToolChoice = AUTO, **sampling: Any) -> Generation:
    prompt = Prompt(messages=(ChatMessage("user", "?"),), tools=tools, tool_choice=choice)
    ids = list(text.encode())
    settings = Sampling(max_tokens=len(ids), **sampling)
    return Generation(id="g", prompt=prompt, ids=ids, sampling=settings)


async def told(backend: LocalBackend, work: Generation) -> tuple[str, list[tuple[str, str]]]:
    async with aclosing(backend.stream(work)) as stream:
        deltas: list[Delta] = [delta async for delta in stream]
    calls = joined(piece for delta in deltas for piece in delta.calls)
    return "".join(delta.text for delta in deltas), [(call.name, call.arguments) for call in calls]


async def test_calls_are_found_where_tools_were_offered(
    connect: Callable[..., Any], knowing: Tokenizer
) -> None:
    backend = await connect(knowing)
    assert backend.takes_tools
    assert await told(backend, says(f"Yes.\n{MARKED}", ADD)) == ("Yes.", CALL)
    assert await told(backend, says(BARE, ADD)) == ("", CALL)
    assert await told(backend, says(MARKED)) == (MARKED, [])
    assert await told(backend, says(MARKED, ADD, choice=ToolChoice("none"))) == (MARKED, [])
    assert await told(backend, says(MARKED + MARKED, ADD, choice=ToolChoice(parallel=False))) == ("", CALL)


async def test_an_object_is_no_call_where_the_text_has_a_grammar(
    connect: Callable[..., Any], knowing: Tokenizer
) -> None:
    """It is what was asked for; and arguments of strict tools must not come around their schema."""
    backend = await connect(knowing)
    asked = Grammar("json_schema", '{"type": "object"}')
    assert await told(backend, says(BARE, ADD, grammar=asked)) == (BARE, [])
    strict = msgspec.structs.replace(ADD, strict=True)
    assert await told(backend, says(BARE, strict)) == (BARE, [])
    assert await told(backend, says(MARKED, strict)) == ("", CALL)


async def test_what_cannot_be_is_refused_by_name(
    connect: Callable[..., Any], knowing: Tokenizer, byte_model: Path
) -> None:
    innocent = await connect(Tokenizer(byte_model))
    assert not innocent.takes_tools
    for backend, work in (
        (innocent, says("x", ADD)),
        (await connect(knowing), says("x", ADD, grammar=Grammar("regex", "x"))),
    ):
        with pytest.raises(Rejected, match="^tools: ") as refused:
            await told(backend, work)
        assert refused.value.code == "unsupported_parameter"
