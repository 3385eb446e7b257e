"""What a CPU is said to have is read from what Linux says of it."""

from pathlib import Path

import pytest

from backends import instructions

X86 = "processor\t: 0\nflags\t\t: fpu sse2 avx512f avx512_bf16\nbugs\t\t: none\n"
OLD = "processor\t: 0\nflags\t\t: fpu sse2 avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n"


@pytest.mark.parametrize(
    ("said", "has"), [(X86, True), (OLD, False), (ARM, True), ("bf16\n", False), ("", False)]
)
def test_flags(said: str, has: bool, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(said)
    assert (not instructions.BFLOAT16.isdisjoint(instructions._flags(file))) is has


def test_where_nothing_is_said_there_is_nothing(tmp_path: Path) -> None:
    assert instructions._flags(tmp_path / "none") == set()


@pytest.mark.parametrize(
    ("device", "has", "dtype"),
    [
        ("cpu", True, "bfloat16"),
        ("cpu", False, "float32"),
        ("cuda", False, "bfloat16"),
        ("cuda:1", False, "bfloat16"),
    ],
)
def test_auto(device: str, has: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "cpu_has_bfloat16", lambda: has)
    assert instructions.auto_dtype(device) == dtype
