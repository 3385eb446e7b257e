"""JSON schemas as grammars take them."""

from typing import Any

# JSON Schema 2020-12, "Validation", section 7.3. By section 7.2.3 any other name of a format asks for nothing.
FORMATS = frozenset(
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri "
    "iri-reference uuid uri-template json-pointer relative-json-pointer regex".split()
)
_VALUES = {"const", "enum", "default", "example", "examples"}  # no schemas in these
_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}


def without_remarks(schema: Any) -> Any:
    """Without formats that JSON Schema does not define, such as Pydantic's `password` and `path`. Of those that it does
    grammars know some and refuse the others by name. Raises RecursionError."""
    if isinstance(schema, list):
        return [without_remarks(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _kept(name, value) for name, value in schema.items() if not _is_remark(name, value)}


def _kept(name: str, value: Any) -> Any:
    if name in _VALUES:
        return value
    if name in _BY_NAME and isinstance(value, dict):
        return {each: without_remarks(schema) for each, schema in value.items()}
    return without_remarks(value)


def _is_remark(name: str, value: Any) -> bool:
    return name == "format" and isinstance(value, str) and value not in FORMATS
