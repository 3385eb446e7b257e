"""`headrace plan`: what a model needs, does and costs on GPUs."""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.arguments import Commands
    from gateway.planning.assumptions import Assumptions

FORMATS = ("fp16", "int8", "int4", "fp8")


def add(commands: "Commands") -> None:
    parser = commands.add_parser(
        "plan",
        help="what a model needs, does and costs on GPUs",
        description="What a model needs, does and costs on GPUs, from first principles. GB are 10^9 bytes.",
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="OWNER/NAME on the Hugging Face Hub, a well-known or catalogue name, a folder with a config.json",
    )
    parser.add_argument(
        "--gpu", action="append", metavar="NAME", help="may be given several times (default: a comparison)"
    )
    parser.add_argument(
        "--price",
        action="append",
        metavar="NAME=DOLLARS",
        help="of one GPU and hour; DOLLARS alone for all; may be given several times",
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=FORMATS,
        help="of the weights; may be given several times (default: all)",
    )
    parser.add_argument(
        "--tensor-parallel",
        type=_whole(1, 8),
        metavar="N",
        help="GPUs of a replica (default: as many as cost least)",
    )
    parser.add_argument("--draft", metavar="NAME", help="a smaller model that drafts")
    parser.add_argument(
        "--json", metavar="FILE", help="also write it as JSON there; - prints JSON instead of words"
    )
    _add_assumptions(parser.add_argument_group("assumptions"))
    parser.set_defaults(command=run)


def _add_assumptions(group: "argparse._ArgumentGroup") -> None:
    """One option for each field of `Assumptions`, whose default stands where it is not given."""
    share, above = _number(0, 1), _number(0, 1, low_open=True)
    options: dict[str, tuple[Callable[[str], float], str]] = {
        "context": (_whole(2), "tokens that every sequence may grow to (4096)"),
        "prompt_tokens": (_whole(1), "of a request (512)"),
        "answer_tokens": (_whole(1), "of a request (256)"),
        "cached": (share, "part of a prompt that is found in the prefix cache (0)"),
        "memory_share": (above, "of a GPU's memory, for weights, keys and values (0.9)"),
        "memory_efficiency": (above, "of a GPU's bandwidth that is reached (0.7)"),
        "compute_efficiency": (above, "of a GPU's rate that is reached (0.5)"),
        "reduce_us": (_number(0, 1e6), "microseconds of an all-reduce beside moving its bytes (20)"),
        "max_batch": (_whole(1, 65536), "sequences of a step at most (256)"),
        "load": (_number(0, 1, low_open=True, high_open=True), "of replicas at the peak (0.7)"),
        "users": (_whole(1), "a day; plans replicas and their cost"),
        "requests_per_user": (_number(0, 1e6, low_open=True), "a day (20)"),
        "peak": (_number(1, 1e6), "rate at the peak over the mean of the day (3)"),
        "acceptance": (share, "of a drafted token (0.85)"),
        "draft_tokens": (_whole(1, 64), "that are drafted for a step (5)"),
    }
    for name, (kind, told) in options.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=told)
    group.add_argument("--kv", choices=FORMATS, help="format of keys and values (fp16)")


def _whole(low: int, high: int = 1_000_000_000) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return parse


def _number(
    low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (low_open and value == low) or (high_open and value == high):
            start, end = "above" if low_open else "from", "to below" if high_open else "to"
            raise argparse.ArgumentTypeError(f"must be {start} {low:g} {end} {high:g}")
        return value

    return parse


def run(options: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    from gateway.planning.gpus import chosen
    from gateway.planning.plan import plan
    from gateway.planning.report import document, words
    from gateway.planning.subject import subject

    given = _assumptions(options)
    gpus = chosen(options.gpu or (), options.price or ())
    model = subject(options.model)
    draft = None if options.draft is None else subject(options.draft, "--draft")
    if draft is not None:
        _check_draft(draft.config.vocab_size, model.config.vocab_size)
    if given.context > model.config.max_positions:
        raise ValueError(
            f"--context: {given.context} is more than the {model.config.max_positions} tokens that the model takes"
        )
    rows = plan(
        model.config,
        gpus,
        list(dict.fromkeys(options.format or FORMATS)),
        given,
        None if draft is None else draft.config,
        options.tensor_parallel,
    )
    told = document(model, draft, gpus, given, rows)
    text = json.dumps(told, indent=2)
    print(text if options.json == "-" else "\n".join(words(told)))
    if options.json not in (None, "-"):
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0


def _check_draft(rows: int, of_model: int) -> None:
    """Configs count padded vocabularies, which may differ a little where the tokens are the same."""
    if abs(rows - of_model) > 0.01 * of_model:
        raise ValueError(f"--draft: has {rows} tokens, the model {of_model}: it needs the same vocabulary")


def _assumptions(options: argparse.Namespace) -> "Assumptions":
    from gateway.planning.assumptions import Assumptions

    said = {each.name: getattr(options, each.name) for each in fields(Assumptions)}
    given = Assumptions(**{name: value for name, value in said.items() if value is not None})
    if given.prompt_tokens + given.answer_tokens > given.context:
        raise ValueError(
            f"--context: {given.context} tokens do not hold a prompt of {given.prompt_tokens} "
            f"and an answer of {given.answer_tokens}"
        )
    for name in ("requests_per_user", "peak"):
        if said[name] is not None and given.users is None:
            raise ValueError(f"--{name.replace('_', '-')}: says nothing without --users")
    for name in ("acceptance", "draft_tokens"):
        if said[name] is not None and options.draft is None:
            raise ValueError(f"--{name.replace('_', '-')}: says nothing without --draft")
    return given
