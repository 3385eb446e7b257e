"""`headrace evaluate`: how good a model is, and what it has lost; the router has a program of its own."""

import argparse
import asyncio
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.cli.arguments import Commands
    from gateway.learning.losses import Mark
    from gateway.learning.tasks import Task
    from gateway.quality import Record

KINDS = {"perplexity": "perplexity", "choices": "share right", "answers": "share right"}


def add(commands: "Commands") -> None:
    parser = commands.add_parser("evaluate", help="measure a model, or the router")
    actions = parser.add_subparsers(required=True, metavar="WHAT")
    actions.add_parser("router", help="see headrace evaluate router --help")
    model = actions.add_parser("model", help="score a model on tasks, and what it has lost against another")
    model.add_argument("--model", required=True, metavar="NAME|PATH", help="as in a configuration")
    model.add_argument(
        "--against", metavar="NAME|PATH", help="the whole weights; what is lost is recorded beside the model"
    )
    model.add_argument(
        "--tasks", type=Path, nargs="+", required=True, metavar="FILE",
        help="texts (.txt), or lines of JSON: text; prompt, choices, answer; prompt, checker; HumanEval's own",
    )  # fmt: skip
    model.add_argument(
        "--quantization", choices=["none", "bf16", "fp32", "auto", "int8", "int4", "w8a8", "fp8"], default="none",
        help="how the engine keeps the weights of --model, as in a configuration (default: none)",
    )  # fmt: skip
    model.add_argument("--device", type=_device, default="cpu", help="cpu (the default), cuda or cuda:N")
    model.add_argument("--parallel", type=_parallel, default=16, metavar="N", help="(default: %(default)s)")
    model.add_argument("--json", type=Path, metavar="OUT", help="also write the record there")
    model.set_defaults(command=run)


def _parallel(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 256):
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 256")
    return int(text)


def _device(text: str) -> str:
    if re.fullmatch("cpu|cuda(:[0-9]+)?", text) is None:
        raise argparse.ArgumentTypeError("must be cpu, cuda or cuda:N")
    return text


def run(options: argparse.Namespace) -> int:
    """Raises ValueError, OSError."""
    from backends.backend import BackendError
    from backends.supervisor import EngineStartError
    from gateway.learning import tasks

    loaded = [tasks.load(path) for path in options.tasks]
    _check_names(loaded)
    if options.json is not None and options.against is None:
        raise ValueError("--json: writes what was lost, for which --against is needed")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no folder {options.json.parent}")
    try:
        marks = _measured(options, loaded)
    except (EngineStartError, BackendError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.against is None:
        print("\n".join(_scores(loaded, marks[0])))
        return 0
    record = _record(options, loaded, *marks)
    print("\n".join(_losses(record)))
    _keep(options, record)
    return 0


def _check_names(tasks: "Sequence[Task]") -> None:
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--tasks: there are two files of the name {name}")


def _measured(options: argparse.Namespace, tasks: "Sequence[Task]") -> "list[list[list[Mark]]]":
    """The marks by model, task and item. Raises EngineStartError, BackendError, ValueError, OSError."""
    from msgspec.structs import replace
    from tqdm import tqdm

    from backends.catalogue import resolve
    from gateway.cli.models import pull_missing
    from gateway.config import Engine
    from gateway.learning.measuring import measure

    models = [options.model] + [options.against] * (options.against is not None)
    pull_missing(models)
    folders = [resolve(model) for model in models]
    if options.against is not None:
        _check_against(options, *folders)
    engines = [Engine(model=model, device=options.device) for model in models]
    engines[0] = replace(engines[0], quantization=options.quantization)
    total = len(engines) * sum(len(task.items) for task in tasks)
    with tqdm(total=total, unit=" items", disable=None) as bar:
        return [asyncio.run(measure(engine, tasks, options.parallel, bar.update)) for engine in engines]


def _check_against(options: argparse.Namespace, model: Path, against: Path) -> None:
    """Raises ValueError for a model of which nothing can be lost, or that is another one."""
    from backends.fingerprint import fingerprint
    from gateway.planning.subject import subject

    if options.quantization in ("none", "bf16", "fp32") and fingerprint(model) == fingerprint(against):
        raise ValueError(
            f"--against: {options.against} has the weights of --model; name those before it was quantised"
        )
    if model.is_file() or against.is_file():
        return
    ours, theirs = (subject(str(folder), "--against").config for folder in (model, against))
    for what in ("layers", "width", "vocab_size"):
        if getattr(ours, what) != getattr(theirs, what):
            raise ValueError(
                f"--against: {options.against} is another model: its config says {what} {getattr(theirs, what)}, "
                f"not {getattr(ours, what)}"
            )


def _record(
    options: argparse.Namespace,
    tasks: "Sequence[Task]",
    model: "Sequence[Sequence[Mark]]",
    against: "Sequence[Sequence[Mark]]",
) -> "Record":
    """Raises ValueError naming the task on which nothing could be lost, OSError."""
    from backends.catalogue import resolve
    from backends.fingerprint import fingerprint
    from gateway.config import Engine
    from gateway.learning.losses import paired_loss
    from gateway.quality import Record, TaskLoss

    lost = []
    for task, ours, theirs in zip(tasks, model, against, strict=True):
        try:
            loss = paired_loss(task.kind, ours, theirs)
        except ValueError as error:
            raise ValueError(f"{task.name}: {error}") from error
        lost.append(
            TaskLoss(
                task=task.name,
                kind=task.kind,
                digest=task.digest,
                items=len(task.items),
                model=loss.model,
                against=loss.against,
                loss=loss.loss,
                low=loss.low,
                high=loss.high,
            )  # fmt: skip
        )
    return Record(
        model=fingerprint(resolve(options.model)),
        quantization=Engine(model=options.model, quantization=options.quantization).weights,
        against=fingerprint(resolve(options.against)),
        against_name=options.against,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        tasks=tuple(lost),
    )


def _keep(options: argparse.Namespace, record: "Record") -> None:
    import msgspec

    from backends.catalogue import resolve
    from gateway import quality

    path, whole = quality.save(resolve(options.model), record)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    worst = whole.worst
    print(
        f"\n{path} is written, of {len(whole.tasks)} tasks. The upper end of the worst interval is "
        f"{max(worst.high, 0):.2%} ({worst.task}): a tier starts with this model if its `quality_gate` is not below "
        "that."
    )


def _scores(tasks: "Sequence[Task]", marks: "Sequence[Sequence[Mark]]") -> list[str]:
    from gateway.learning.losses import score

    lines = [f"{'task':32} {'items':>6} {'':12} {'model':>9}"]
    for task, own in zip(tasks, marks, strict=True):
        lines.append(f"{task.name:32} {len(own):6} {KINDS[task.kind]:12} {score(task.kind, own):9.4f}")
    return lines


def _losses(record: "Record") -> list[str]:
    lines = [f"{'task':32} {'items':>6} {'':12} {'model':>9} {'against':>9} {'lost':>8}  90% interval"]
    for each in record.tasks:
        lines.append(
            f"{each.task:32} {each.items:6} {KINDS[each.kind]:12} {each.model:9.4f} {each.against:9.4f} "
            f"{each.loss:8.2%}  {each.low:.2%} to {each.high:.2%}"
        )
    return lines
