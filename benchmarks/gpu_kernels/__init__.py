"""Cases of the kernels for GPUs, one module for what belongs together; a kernel joins by being in `FAMILIES`."""

from collections.abc import Callable, Iterator

from benchmarks.gpu_kernels import attention, products, rotation, rows, sampling
from benchmarks.gpu_kernels.case import Case, Setting

Family = Callable[[Setting], Iterator[Case]]

FAMILIES: dict[str, Family] = {
    "products": products.cases,
    "attention": attention.cases,
    "rows": rows.cases,
    "rotation": rotation.cases,
    "sampling": sampling.cases,
}

# What each launches; the tests see to it that no kernel is left out.
LAUNCHED: dict[str, frozenset[str]] = {
    "products": frozenset({"multiply", "finish", "quantize"}),
    "attention": frozenset({"attend", "merge"}),
    "rows": frozenset({"norm", "norm_each", "gate_mul"}),
    "rotation": frozenset({"rotate"}),
    "sampling": frozenset({"cut", "draw_pieces"}),
}
