"""How the benchmark of GPUs judges kernels: what is wrong, what fails, and what the hardware would need."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

import backends.kernels
from benchmarks import gpu
from benchmarks.gpu_kernels import FAMILIES, LAUNCHED
from benchmarks.gpu_kernels.__main__ import keep, row_of, rows_of
from benchmarks.gpu_kernels.case import Case, Setting, Tensors, error
from benchmarks.gpu_kernels.clock import Clock
from benchmarks.gpu_kernels.limits import Limits, known, of_data_sheet
from benchmarks.report import Row
from gateway.planning.gpus import GPUS

CPU = torch.device("cpu")
LIMITS = Limits(1e9, {"fp16": 1e12, "fp8": 2e12})


def case(ours: torch.Tensor, plain: torch.Tensor, *, tolerance: float = 0.0) -> Case:
    return Case("a case", ("kernel",), lambda: ((ours,), (plain,)), lambda: None, 1000.0, tolerance)


def test_every_kernel_has_cases() -> None:
    """A kernel is launched as NAME[grid](…), in one of the modules whose names say that they are Triton's."""
    launched = set()
    for module in Path(backends.kernels.__path__[0]).glob("triton_*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                assert isinstance(node.func.value, ast.Name)
                launched.add(node.func.value.id)
    assert launched == set().union(*LAUNCHED.values())
    assert set(FAMILIES) == set(LAUNCHED) == set(gpu.FAMILIES)


def test_a_right_kernel_is_held_to_its_limit() -> None:
    row = row_of("norms", case(torch.ones(3), torch.ones(3)), LIMITS, Clock(CPU))
    assert (row.case, row.unit) == ("norms: a case [kernel]", "µs")
    assert row.peer == pytest.approx(1.0)  # 1000 bytes at 1 GB/s
    assert row.peer_name == "bandwidth, data sheet" and row.details == {"error": "0"}


def test_a_wrong_kernel_is_a_row_that_says_by_how_much() -> None:
    wrong = case(torch.tensor([1.0, 2.2]), torch.tensor([1.0, 2.0]), tolerance=0.05)
    row = row_of("norms", wrong, LIMITS, Clock(CPU))
    assert (row.unit, row.peer_name) == ("-", "WRONG")
    assert row.details == {"wrong": "off by 0.1 of the largest, 0.05 is allowed"}


def test_a_kernel_that_fails_is_a_row_and_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[Tensors, Tensors]:
        raise RuntimeError("illegal memory access\nand more")

    def cases(setting: Setting) -> Iterator[Case]:
        yield Case("first", ("kernel",), fail, lambda: None, 1.0, 0.0)
        yield case(torch.ones(1), torch.ones(1))
        raise ValueError("no such shape")

    monkeypatch.setitem(FAMILIES, "rows", cases)
    failing, right, rest = rows_of("rows", Setting(CPU, torch.float32, tiny=True))
    assert failing.peer_name == "FAILED" and "illegal memory access" in failing.details["failed"]
    assert right.unit == "µs"
    assert (rest.case, rest.details) == ("rows: the rest", {"failed": "ValueError: no such shape"})


def test_rows_are_kept_as_they_come(tmp_path: Path) -> None:
    """A process that dies in its third case has told of two."""
    row = row_of("norms", case(torch.ones(3), torch.ones(3)), LIMITS, Clock(CPU))

    def rows() -> Iterator[Row]:
        yield row
        yield row
        raise SystemExit(9)

    with pytest.raises(SystemExit):
        keep(rows(), tmp_path / "rows.json")
    assert msgspec.json.decode((tmp_path / "rows.json").read_bytes(), type=list[Row]) == [row, row]


def test_errors_count_beside_the_largest_number() -> None:
    exact = torch.tensor([0.0, -4.0, 1.0])
    assert error((exact,), (exact,)) == 0
    assert error((exact + 0.02,), (exact,)) == pytest.approx(0.005)
    assert error((exact, exact[:2]), (exact, exact)) == torch.inf
    gaps = torch.tensor([0.5, -torch.inf])
    assert error((gaps,), (gaps.clone(),)) == 0
    assert not error((torch.tensor([torch.nan, 1.0]),), (exact[:2],)) <= 1
    assert not error((torch.tensor([0.5, 0.1]),), (gaps,)) <= 1


def test_the_limit_is_what_takes_longer() -> None:
    moving = Case("", (), lambda: ((), ()), lambda: None, 2e9, 0.0, 1e12)
    assert LIMITS.seconds(moving) == (2.0, "bandwidth")
    counting = Case("", (), lambda: ((), ()), lambda: None, 1.0, 0.0, 4e12, "fp8")
    assert LIMITS.seconds(counting) == (2.0, "fp8 rate")
    unknown = Case("", (), lambda: ((), ()), lambda: None, 1e9, 0.0, 9e12, "int8")
    assert LIMITS.seconds(unknown) == (1.0, "bandwidth")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_gpus_are_known_by_what_drivers_call_them(driver: str, name: str | None) -> None:
    found = known(driver)
    assert (None if found is None else found.name) == name


def test_types_that_a_gpu_lacks_have_the_rate_of_halves() -> None:
    limits = of_data_sheet(GPUS["a100-80g"])
    assert limits.bandwidth == 2039e9
    assert limits.rates == {"fp16": 312e12, "int8": 624e12, "fp8": 312e12}
