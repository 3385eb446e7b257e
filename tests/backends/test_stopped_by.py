"""Which stop string ended an answer of an engine of our own."""

from pathlib import Path

import pytest

from backends.deltas import DeltaReader
from backends.tokenizer import Tokenizer
from backends.wire import Output, Sampling


@pytest.mark.parametrize(
    ("stops", "tail", "stopped_by"),
    [
        (("END",), "END", "END"),
        (("END",), "END of it", "END"),
        (("E", "END"), "END", "E"),
        (("ND", "END"), "END", "END"),
        (("\N{WAVING HAND SIGN}",), "\N{WAVING HAND SIGN}", "\N{WAVING HAND SIGN}"),
        (("END",), "", None),
        ((), "", None),
    ],
)
def test_the_string_whose_match_ended_first(
    byte_model: Path, stops: tuple[str, ...], tail: str, stopped_by: str | None
) -> None:
    tokenizer = Tokenizer(byte_model)
    answer = DeltaReader("7b/0", [1, 2, 3], Sampling(max_tokens=99, stop=stops), tokenizer)
    ids = tokenizer._ids([f"said {tail}"], add_special_tokens=False)
    delta = answer.take(Output(id="g", ids=ids, finish="stop", trim=len(tail.encode())))
    assert delta is not None
    assert (delta.text, delta.stopped_by) == ("said ", stopped_by)
