"""The GPUs that plans are made for: what their makers' data sheets say, and what an hour of them costs.

Rates are dense, without the sparsity that data sheets like to count in. Memory is what the sheet says, taken as 10⁹
bytes each; drivers report up to 7% more. Links are one direction of one GPU.

Sources. A100: NVIDIA A100 Tensor Core GPU data sheet (SXM4). H100, H200: NVIDIA H100 and H200 Tensor Core GPU data
sheets (SXM5). L4, L40S: NVIDIA L4 and L40S data sheets, PCIe 4.0 x16. B200: NVIDIA DGX and HGX B200 data sheets,
divided by their eight GPUs. MI300X: AMD Instinct MI300X data sheet, Infinity Fabric.

Prices, US dollars for one GPU and hour: docs.runpod.io/serverless/pricing, workers that are always on, per second as
of 2026, times 3,600; the A100 of 40 GB: Lambda's on-demand list, May 2026. They move, and differ by a factor of three
between providers: `--price` states yours. The MI300X has none here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.strictyaml import nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    """`rates`: TFLOPS by the type of the product; a type that is missing runs as fp16."""

    name: str
    memory_gb: float
    bandwidth: float  # GB/s
    rates: dict[str, float]
    link: float  # GB/s
    price: float | None  # US dollars an hour

    def rate(self, kind: str) -> float:
        return self.rates.get(kind, self.rates["fp16"])


_AMPERE = {"fp16": 312.0, "int8": 624.0}
_HOPPER = {"fp16": 989.4, "int8": 1978.9, "fp8": 1978.9}

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40g", 40, 1555, _AMPERE, 300, 1.48),
        Gpu("a100-80g", 80, 2039, _AMPERE, 300, 2.16),
        Gpu("h100", 80, 3350, _HOPPER, 450, 3.348),
        Gpu("h200", 141, 4800, _HOPPER, 450, 4.464),
        Gpu("l4", 24, 300, {"fp16": 121.0, "int8": 242.5, "fp8": 242.5}, 32, 0.468),
        Gpu("l40s", 48, 864, {"fp16": 362.05, "int8": 733.0, "fp8": 733.0}, 32, 1.332),
        Gpu("b200", 180, 8000, {"fp16": 2250.0, "int8": 4500.0, "fp8": 4500.0}, 900, 6.84),
        Gpu("mi300x", 192, 5300, {"fp16": 1307.4, "int8": 2614.9, "fp8": 2614.9}, 448, None),
    )
}
COMPARED = ("a100-40g", "a100-80g", "h100", "h200", "l4")
PER_HOST = 8  # GPUs that one replica can be spread over


def chosen(names: Sequence[str], prices: Sequence[str]) -> list[Gpu]:
    """The GPUs of these names, or those that are usually compared; `prices` are `NAME=DOLLARS`, or `DOLLARS` for all.

    Raises ValueError for a name that is not known and for a price that is none.
    """
    found = {name: _known("--gpu", name) for name in names or COMPARED}
    for price in prices:
        name, equals, dollars = price.rpartition("=")
        if equals and _known("--price", name).name not in found:
            raise ValueError(f"--price: {name} is not among the GPUs of this plan, {', '.join(found)}")
        for each in (name,) if equals else tuple(found):
            found[each] = replace(found[each], price=_dollars(dollars))
    return list(found.values())


def _known(option: str, name: str) -> Gpu:
    if name not in GPUS:
        raise ValueError(f"{option}: there is no GPU {name}; {nearest(name, list(GPUS))}")
    return GPUS[name]


def _dollars(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e6:
        raise ValueError(f"--price: {text!r} is not a price; say NAME=DOLLARS, or DOLLARS for all")
    return value
