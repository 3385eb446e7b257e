"""JSON bodies to plain values, with nothing forgiven.

msgspec is the judge of syntax, UTF-8, numbers and lone surrogates. It keeps the last of equal keys without a word, so
they are looked for first: what another server reads differently must not pass.
"""

import json
import re
from typing import Any

import msgspec

from gateway.errors import ApiError

Path = str
"""Where a value lies: `messages[0].content`, empty for the body itself."""


def decode_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError 400 for anything but one JSON object."""
    try:
        value = msgspec.json.decode(body)
        _UNIQUE.decode(body.decode())
    except RecursionError:
        raise _malformed("nested too deeply") from None
    except _DuplicateKey as error:
        raise _malformed(f"the key {str(error)[:64]!r} occurs twice in one object") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise _malformed(_syntax(error, body)) from None
    if not isinstance(value, dict):
        raise _malformed("an object is needed")
    return value


def _syntax(error: Exception, body: bytes) -> str:
    """msgspec calls a body cut off that ends behind half a surrogate pair, wherever that is."""
    said = str(error)
    if not ("truncated" in said or "surrogate" in said):
        return said
    half = next((match["half"] for match in _ESCAPE.finditer(body) if match["half"]), None)
    return said if half is None else f"{half.decode('latin-1')} is half of a surrogate pair, no character"


def invalid(path: Path, reason: str, code: str = "invalid_value") -> ApiError:
    """What to raise for a field; clients read its path in `param`."""
    return ApiError(400, f"{path}: {reason}"[:500], code=code, param=path[:200])


def convert_error(error: msgspec.ValidationError) -> ApiError:
    """msgspec's words, which end in where ("... - at `$.messages[0].role`"), as ours, which begin with it."""
    match = _AT.fullmatch(str(error))
    if match is None:
        return _malformed(str(error))
    # Of a value in an object with keys of the client's msgspec does not say which one it is, see `_WHICHEVER`.
    reason, path = match["reason"], (match["path"] or "").removeprefix(".")
    if _WHICHEVER in path:
        path = path.partition(_WHICHEVER)[0]
        reason = f"a value is wrong: {reason[0].lower()}{reason[1:]}"
    if match["key"]:
        return invalid(path, f"a key is wrong: {reason[0].lower()}{reason[1:]}")
    field = _FIELD.fullmatch(reason)
    if field is not None:
        path = f"{path}.{field['name']}".removeprefix(".")
        if field["unknown"]:
            return invalid(path, "this parameter is unknown", "unknown_parameter")
        return invalid(path, "this parameter is missing", "missing_required_parameter")
    return invalid(path, reason[0].lower() + reason[1:])


class _DuplicateKey(Exception):
    """Names the key."""


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _DuplicateKey(key)
        seen.add(key)


# Pairs and other escapes are stepped over, so that none of their halves or backslashes is taken for one alone.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(?P<half>\\u[dD][89a-fA-F]\w\w)|\\.", re.DOTALL
)
_WHICHEVER = "[...]"
_UNIQUE = json.JSONDecoder(object_pairs_hook=_unique)
_AT = re.compile(r"(?P<reason>.*?)(?: - at `(?P<key>key` in `)?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(
    r"Object (?:contains (?P<unknown>unknown)|missing required) field `(?P<name>.*)`", re.DOTALL
)


def _malformed(reason: str) -> ApiError:
    return ApiError(400, f"The body is not valid JSON for this endpoint: {reason}"[:500], code="invalid_json")
