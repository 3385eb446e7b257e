"""`headrace quantize`, which runs `python -m backends.quantize`: a model in fewer bits, as a standard checkpoint."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from tqdm import tqdm

from backends.catalogue import resolve
from backends.quantize import calibration
from backends.quantize.job import Calibrate, Order, quantize
from backends.quantize.settings import Settings, settings
from backends.tokenizer import Tokenizer

FAILED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Write a model in fewer bits as a standard checkpoint. A job that was stopped goes on where it was."""
    options = _parser().parse_args(argv)
    try:
        asked = settings(
            options.method,
            options.bits,
            options.group,
            options.asymmetric,
            options.act_order,
            options.samples,
            options.length,
        )
        _run(_order(options, asked))
    except (ValueError, OSError, SafetensorError) as error:
        print(f"headrace quantize: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("headrace quantize: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(
        f"{options.out} is written. What it has lost is measured by: "
        f"headrace evaluate model --model {options.out} --against {options.model} --tasks FILE..."
    )
    return 0


def _run(order: Order) -> None:
    with tqdm(unit=" linears", disable=None) as bar:

        def begun(total: int, done: int) -> None:
            bar.reset(total)
            bar.update(done)

        quantize(order, begun, bar.update)


def _order(options: argparse.Namespace, asked: Settings) -> Order:
    source = resolve(options.model)
    file = None if options.calibration == "builtin" else Path(options.calibration)
    if file is not None and not asked.calibrated:
        raise ValueError(f"--calibration: {asked.method} watches no model at work")
    return Order(
        source=source,
        out=options.out,
        settings=asked,
        calibrate=_calibrate(source, file, asked, options.device),
        calibration=calibration.origin(file),
        device=torch.device(options.device),
        restart=options.restart,
    )


def _calibrate(source: Path, file: Path | None, asked: Settings, device: str) -> Calibrate:
    if file is not None:
        return partial(calibration.read, file, Tokenizer(source), asked.samples, asked.length)
    return partial(_own_words, source, asked, device)


def _own_words(source: Path, asked: Settings, device: str) -> torch.Tensor:
    from backends.quantize.own_words import own_words  # an engine, which a file does not need

    with tqdm(desc="calibration", unit=" tokens", total=asked.samples * asked.length, disable=None) as bar:
        return own_words(source, asked.samples, asked.length, device, bar.update)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace quantize", description=main.__doc__)
    add = parser.add_argument
    add(
        "--model",
        required=True,
        metavar="NAME|FOLDER",
        help="of the catalogue, or a folder with whole weights",
    )
    add("--out", type=Path, required=True, metavar="FOLDER", help="the folder to make")
    add(
        "--method", required=True, choices=["awq", "gptq", "rtn", "fp8"],
        help="activation-aware scaling, error compensation, round to nearest, or 8-bit floating point",
    )  # fmt: skip
    add("--bits", type=int, help="4 (the default) or 8")
    add("--group", type=int, help="columns that share a scale: 128 (the default), 64, 32; 0 for whole rows")
    add("--asymmetric", action="store_true", help="rtn, gptq: groups have a zero of their own")
    add(
        "--act-order", choices=["none", "static", "dynamic"],
        help="gptq: columns with strong inputs first, in groups of neighbours (static, the default) or by this order",
    )  # fmt: skip
    add(
        "--calibration", default="builtin", metavar="FILE|builtin",
        help='lines of JSON with text, prompt or messages (default: builtin, the model\'s own words)',
    )  # fmt: skip
    add("--samples", type=_count, metavar="N", help="sequences of the calibration (default: 64)")
    add("--length", type=_count, metavar="N", help="tokens of each (default: 512)")
    add("--device", default="cpu", type=_device, help="cpu (the default), cuda or cuda:N")
    add("--restart", action="store_true", help="throw away what a stopped job has done")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 1,000,000")
    return int(text)


def _device(text: str) -> str:
    kind, _, number = text.partition(":")
    if not (text == "cpu" or kind == "cuda" and (text == "cuda" or number.isascii() and number.isdigit())):
        raise argparse.ArgumentTypeError("must be cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("there is no such GPU here")
    return text


if __name__ == "__main__":
    sys.exit(main())
