"""What a template does with tools, read off what it renders."""

from typing import Any

import pytest

from backends.chat_template import ChatTemplate, message_fields, tool_fields
from backends.tools.formats import ToolSupport, support

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
CALLS = (
    "{% for c in m.tool_calls or [] %}BEGIN{{ c.function.name }} {{ c.function.arguments | tojson }}END"
    "{% endfor %}"
)
FULL = PLAIN.replace("{% endfor %}", CALLS + "{% endfor %}") + TOOLS
HERMES = FULL.replace("BEGIN", "<tool_call>").replace("END", "</tool_call>")


def supported(source: str) -> ToolSupport:
    template = ChatTemplate(source, {})
    return support(
        lambda messages, tools: template.render(
            [message_fields(message) for message in messages], [tool_fields(tool) for tool in tools]
        )
    )


def test_a_template_that_tells_of_everything_in_a_known_format() -> None:
    found = supported(HERMES)
    assert found.told and found.format is not None and found.format.name == "hermes"


def test_instructions_that_show_the_marks_do_not_count_as_a_call() -> None:
    assert supported("Use <tool_call></tool_call>. " + HERMES).format is not None
    found = supported("Use <tool_call></tool_call>. " + FULL)
    assert found == ToolSupport(True, None)


def test_calls_in_an_unknown_format() -> None:
    assert supported(FULL) == ToolSupport(True, None)


@pytest.mark.parametrize(
    "source",
    [
        PLAIN,
        PLAIN + TOOLS,  # calls are dropped
        FULL.replace(TOOLS, ""),  # tools are dropped
        HERMES.replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}"),  # results
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + HERMES,
        "{{ messages[5].content.x }}",
    ],
)  # fmt: skip
def test_a_template_that_drops_any_of_it_supports_none(source: str) -> None:
    assert supported(source) == ToolSupport(False, None)


def test_ids_that_a_template_is_particular_about() -> None:
    """Mistral's templates insist on nine letters and digits."""
    strict: Any = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}{% endfor %}{% endfor %}"  # noqa: E501
    assert supported(strict + HERMES).told


def test_calls_without_marks_are_known_by_their_key() -> None:
    call = '{"name": "BEGIN'.replace("BEGIN", "{{ c.function.name }}") + '", "parameters": '
    llama = FULL.replace("BEGIN{{ c.function.name }} ", call).replace("END", "}")
    found = supported(llama)
    assert found.told and found.format is not None and found.format.name == "llama3_json"
    assert supported(llama.replace("parameters", "args")).format is None
