"""What an answer has to look like, as clients of different dialects say it; and the grammar that comes of it.

`structured_outputs` is vLLM's extension, by the names that its servers have taken since 0.12.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.wire import MAX_GRAMMAR, Grammar
from gateway.api.schemas import ENDLESS, endless
from gateway.api.strictjson import Path, invalid

MAX_CHOICES = 1024
ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$]")  # what means something in a regular expression

Schema = dict[str, Any]
SchemaName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Anything."""


class JsonObject(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"
):
    """Any JSON object, whether or not the prompt speaks of JSON."""


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Name and description are for models that are shown them; `strict` or not, the schema is enforced."""

    name: SchemaName
    schema: Schema | None = None  # of an object, where none is given
    description: str | None = None
    strict: bool | None = None


class JsonSchema(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    json_schema: NamedSchema


class FlatSchema(
    NamedSchema, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="json_schema"
):
    """As the Responses API has it, where there must be one."""

    schema: Schema


class BareSchema(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"
):
    """As Anthropic has it."""

    schema: Schema


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of these. A regular expression is Rust's and matches the whole answer; a grammar is llguidance's Lark."""

    json: Schema | str | None = None
    regex: Annotated[str, Meta(min_length=1)] | None = None
    choice: (
        Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)] | None
    ) = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    json_object: bool = False

    def to_grammar(self, path: Path) -> Grammar:
        """Raises ApiError 400."""
        asked = [name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)]
        if len(asked) != 1:
            raise invalid(path, f"exactly one of {', '.join(self.__struct_fields__)} is needed")
        return _checked(self._grammar(path), f"{path}.{asked[0]}")

    def _grammar(self, path: Path) -> Grammar:
        if self.json is not None:
            schema = _decoded(self.json, f"{path}.json") if isinstance(self.json, str) else self.json
            return _of_schema(schema, f"{path}.json")
        if self.regex is not None:
            return Grammar("regex", self.regex)
        if self.choice is not None:
            return Grammar("regex", "|".join(_SYNTAX.sub(r"\\\g<0>", choice) for choice in self.choice))
        return ANY_OBJECT if self.grammar is None else Grammar("lark", self.grammar)


ResponseFormat = Text | JsonObject | JsonSchema
TextFormat = Text | JsonObject | FlatSchema
STRUCTURED_OFF: Mapping[str, tuple[Any, ...]] = {
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
    "whitespace_pattern": (),
    "structural_tag": (),
}


def grammar_of(
    format: Text | JsonObject | JsonSchema | FlatSchema | BareSchema, path: Path
) -> Grammar | None:
    """None where anything goes. `path`: of the format. Raises ApiError 400 for a schema that is too long or endless."""
    match format:
        case Text():
            return None
        case JsonObject():
            return ANY_OBJECT
        case JsonSchema():
            path, schema = f"{path}.json_schema.schema", format.json_schema.schema
        case _:
            path, schema = f"{path}.schema", format.schema
    return _checked(_of_schema(schema, path), path)


def _of_schema(schema: Schema | None, path: Path) -> Grammar:
    """Properties are asked for in the order of the schema, so it is kept."""
    if schema is None:
        return ANY_OBJECT
    if endless(schema):
        raise invalid(path, ENDLESS)
    return Grammar("json_schema", msgspec.json.encode(schema).decode())


def _checked(grammar: Grammar, path: Path) -> Grammar:
    if len(grammar.source) > MAX_GRAMMAR:
        raise invalid(path, f"{len(grammar.source)} characters are more than {MAX_GRAMMAR}")
    return grammar


def _decoded(text: str, path: Path) -> Schema:
    try:
        schema = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(path, f"no JSON schema of an object: {error}") from None
    return schema
