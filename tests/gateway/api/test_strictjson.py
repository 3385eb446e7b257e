"""Bodies that are no JSON object, and how a wrong field is named."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.strictjson import convert_error, decode_object
from gateway.errors import ApiError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}{}",
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b"\xef\xbb\xbf{}",
        b"\xff",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',  # a surrogate in UTF-8
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\x00"}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        '{"a": 1}'.encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(ApiError) as error:
        decode_object(body)
    assert (error.value.status, error.value.code) == (400, "invalid_json")
    assert len(error.value.message) <= 500


@pytest.mark.parametrize("body", [b'{"a": 1, "a": 1}', b'{"b": [{"x": {}, "a": 1, "\\u0061": 2}]}'])
def test_duplicate_keys_are_named(body: bytes) -> None:
    with pytest.raises(ApiError, match="the key 'a' occurs twice"):
        decode_object(body)


# Busy machines are slow; that says nothing of the code.
FEWER = settings(max_examples=50)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=8,
)  # fmt: skip


@FEWER
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON))
def test_objects_come_back(value: dict[str, Any]) -> None:
    assert decode_object(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ["\\ud800", "x\\ud83dy", "\\udc00", "\\ud800\\u0041"])
def test_half_a_surrogate_pair_is_called_so(text: str) -> None:
    with pytest.raises(ApiError, match=r"\\ud\w{3} is half of a surrogate pair"):
        decode_object(f'{{"a": "{text}"}}'.encode())


def test_a_whole_pair_is_a_character_and_a_body_cut_off_is_that() -> None:
    assert decode_object(rb'{"a": "\ud83d\ude42"}') == {"a": "🙂"}
    with pytest.raises(ApiError, match="truncated"):
        decode_object(rb'{"a": "\ud83d\ude42')


@FEWER
@given(st.binary(max_size=200))
def test_bytes_are_an_object_or_a_400(body: bytes) -> None:
    try:
        assert isinstance(decode_object(body), dict)
    except ApiError as error:
        assert error.status == 400


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    needed: str
    inner: list[Inner] = []


@pytest.mark.parametrize(
    ("value", "param", "code", "words"),
    [
        ({}, "needed", "missing_required_parameter", "missing"),
        ({"needed": "", "odd": 1}, "odd", "unknown_parameter", "unknown"),
        ({"needed": "", "odd`\n": 1}, "odd`\n", "unknown_parameter", "unknown"),
        ({"needed": "", "inner": [{}, {"odd": 1}]}, "inner[1].odd", "unknown_parameter", "unknown"),
        ({"needed": "", "inner": [{"number": "1"}]}, "inner[0].number", "invalid_value", "expected `int`, got `str`"),
        ({"needed": 5}, "needed", "invalid_value", "expected `str`, got `int`"),
    ],
)  # fmt: skip
def test_the_field_comes_first(value: Any, param: str, code: str, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.convert(value, Outer)
    error = convert_error(wrong.value)
    assert error.param is not None and error.param.startswith(param)
    assert error.code == code
    assert error.message.startswith(f"{error.param}: ")
    assert words in error.message
