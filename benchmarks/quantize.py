"""What four bits cost: perplexity of a text by weights rounded to the nearest, by AWQ and by GPTQ, in groups of a size.

`divergence` is how far the model's words have moved from those of the whole weights (Kullback and Leibler's, in nats a
token). It is the steadier figure: the perplexity of a text that the model would not have written is partly luck, and
moves by percents when ranges are made a hundredth wider.

Each model is written by `headrace quantize`, read back as any checkpoint is, and computes in float32. The text, prose
and a manual of our own, is not what the methods have watched the models on, as ever their own words. A line's
peer is rounding with the same zeros, in the middle or of each group's own; that of eight bits is the whole weights, and
`lost` is against these. A larger model takes an hour: `--keep` a folder, and a run that was stopped goes on there.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import tokenizers
import torch

from backends.catalogue import find
from backends.kernels.layout import Span
from backends.quantize.job import Order, quantize
from backends.quantize.own_words import own_words
from backends.quantize.settings import settings
from benchmarks import formats
from benchmarks.report import Report, Row, arguments, machine, paired, publish

# Groups divide the columns of every linear.
MODELS = {"smollm2-135m-instruct": 64, "qwen2.5-coder-0.5b-instruct": 128}
METHODS = {
    "rtn": settings("rtn"),
    "rtn with zeros": settings("rtn", asymmetric=True),
    "gptq": settings("gptq", samples=32),
    "gptq with zeros": settings("gptq", asymmetric=True, samples=32),
    "awq": settings("awq", samples=32),
    "rtn of 8 bits": settings("rtn", bits=8),
}
PEERS = {"gptq": "rtn", "gptq with zeros": "rtn with zeros", "awq": "rtn with zeros"}
README = Path(__file__).parents[1] / "README.md"
WINDOW = 512  # tokens


class Heard(NamedTuple):
    """`perplexity` per token; `divergence` from the whole model."""

    perplexity: float
    divergence: float


def expected(folder: Path, windows: list[list[int]]) -> Iterator[torch.Tensor]:
    """How likely each token is behind each of a window, which stands by itself: logarithms [tokens - 1, vocabulary]."""
    subject = formats.Subject(folder, torch.float32, "none")
    for ids in windows:
        span = Span(0, len(ids), list(range(-(-len(ids) // formats.BLOCK))), 0)
        yield subject.logits(ids, [span], list(range(len(ids) - 1))).float().log_softmax(1)


def heard(folder: Path, windows: list[list[int]], whole: list[torch.Tensor]) -> Heard:
    """`whole`: what the whole model expects, float16."""
    surprises, divergences = [], []
    for ids, ours, theirs in zip(windows, expected(folder, windows), whole, strict=True):
        surprises.append(-ours.gather(1, torch.tensor(ids[1:])[:, None]).mean())
        likely = theirs.float()
        divergences.append((likely.exp() * (likely - ours)).sum(1).mean())
    return Heard(float(torch.stack(surprises).mean().exp()), float(torch.stack(divergences).mean()))


def windows_of(folder: Path, count: int) -> list[list[int]]:
    """The first so many windows of the prose, and as many of the manual."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = []
    for path in (formats.TEXT, README):
        ids = tokenizer.encode(path.read_text(encoding="utf-8")).ids
        found += [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)][:count]
    return found


@contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """The folder that is kept, or one that goes again."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@cache
def words(folder: Path, samples: int, length: int) -> torch.Tensor:
    """The model's own, which all methods watch it on."""
    return own_words(folder, samples, length, "cpu")


def made(folder: Path, method: str, group: int, work: Path, samples: int | None) -> Path:
    """The model by one method, unless it is there."""
    asked = msgspec.structs.replace(METHODS[method], group=group)
    if asked.calibrated and samples is not None:
        asked = msgspec.structs.replace(asked, samples=samples)
    watched = f"-{asked.samples}-samples" if asked.calibrated else ""
    out = work / f"{folder.name}-{method.replace(' ', '-')}-{group}{watched}"
    if out.exists():
        return out
    order = Order(
        source=folder, out=out, settings=asked, calibrate=partial(words, folder, asked.samples, asked.length),
        calibration="builtin", device=torch.device("cpu"),
    )  # fmt: skip
    quantize(order, lambda total, done: None, lambda: None)
    return out


def rows_of(model: str, group: int, windows: int, samples: int | None, work: Path) -> list[Row]:
    folder = find(model).folder
    texts = windows_of(folder, windows)
    whole = [each.half() for each in expected(folder, texts)]
    found = {"as it was": heard(folder, texts, whole)}
    for method in METHODS:
        found[method] = heard(made(folder, method, group, work, samples), texts, whole)
        print(f"{model} {method}: {found[method]}", flush=True)
    return [
        paired(
            f"{model} {method}", [(value.perplexity, found[PEERS.get(method, "as it was")].perplexity)],
            peer_name=PEERS.get(method, "as it was"), unit="perplexity", higher_is_better=False,
            details={
                "lost, %": round(100 * (value.perplexity / found["as it was"].perplexity - 1), 2),
                "divergence": round(value.divergence, 4),
                "group": group,
            },
        )
        for method, value in found.items()
    ]  # fmt: skip


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=list(MODELS), help="this one alone")
    parser.add_argument("--keep", type=Path, help="make the models in this folder, and leave them there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    asked = [options.model] if options.model else list(MODELS)
    if options.quick and not options.model:
        asked = asked[:1]
    absent = [model for model in asked if not find(model).present]
    for model in absent:
        print(f"{model} is not pulled; its lines are left out")
    windows, samples = (2, 16) if options.quick else (6, None)
    with workplace(options.keep) as work:
        rows = [
            row
            for model in asked
            if model not in absent
            for row in rows_of(model, MODELS[model], windows, samples, work)
        ]
    publish(Report(name="quantize", machine=machine(), rows=rows), options.json)


if __name__ == "__main__":
    main()
