"""Quantising a model, one block after the other. In memory are one block, and what the calibration is at that place.

All that is unfinished lies in `.NAME.partial` beside the folder NAME that is made, under a lock: the blocks that are
done, as they will be, and how far the calibration has come. A job that was stopped goes on behind the last block that
was done, and makes the same; one with another source or other settings is refused there.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file

from backends.fingerprint import fingerprint
from backends.models.checkpoint import Checkpoint, open_checkpoint
from backends.models.config import DecoderConfig
from backends.models.loader import EMBEDDING, prefix_of
from backends.models.registry import decoder_config
from backends.quantize.checkpoint import finish, rest, shard, write_tensors
from backends.quantize.progress import Passage
from backends.quantize.schemes import Scheme, scheme_of
from backends.quantize.settings import Settings
from backends.quantize.subject import Subject

LAYOUT = 5  # of what lies in a partial folder, and of what methods do; raise it when one of these changes
BLOCKS = "model.layers."
_LOCK, _JOB = "lock", "job.json"
_CALIBRATION, _STATE = "calibration.safetensors", "state.safetensors"

Calibrate = Callable[[], torch.Tensor]
"""Makes the calibration: int64 [samples, length] of token ids."""


class JobError(ValueError):
    """The job cannot run; the message says what to do."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the blocks of a partial folder belong to. `calibration`: where its tokens come from."""

    layout: int
    source: str
    settings: Settings
    calibration: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`source`: a folder; `out`: the folder to make; `calibrate` is called once, for methods that need it, and
    `calibration` tells its origin; `restart`: whatever is left of another job goes."""

    source: Path
    out: Path
    settings: Settings
    calibrate: Calibrate
    calibration: str
    device: torch.device
    restart: bool = False


def quantize(order: Order, begun: Callable[[int, int], object], done: Callable[[], object]) -> None:
    """Make `order.out`, whole or not at all.

    `begun` is told how many linears there are and how many are done; `done` is called after each. Raises JobError,
    CheckpointError, ValueError naming a tensor, OSError.
    """
    out = order.out
    if out.exists():
        raise JobError(f"{out} exists already")
    checkpoint = _whole(order.source)
    config = decoder_config(checkpoint.config)
    scheme = scheme_of(order.settings, stored_dtype(checkpoint))
    _check_shapes(checkpoint, config, scheme, order)
    work = out.with_name(f".{out.name}.partial")
    with _locked(work):
        _enter(work, order)
        passage = _passage(work, order, checkpoint, config)
        begun(4 * config.layers, 4 * passage.layer)
        while passage.layer < config.layers:
            subject = Subject(checkpoint, config, f"{BLOCKS}{passage.layer}", scheme, order.device)
            for each in subject.linears:
                each.done = done
            passage.take(subject)
            write_tensors(work / shard(passage.layer, config.layers + 1), subject.tensors())
            passage.save(work / _STATE)
        last = shard(config.layers + 1, config.layers + 1)
        write_tensors(work / last, rest(checkpoint, BLOCKS, config.tied, scheme.dtype))
        finish(work, checkpoint, scheme)
        for name in (_JOB, _CALIBRATION, _STATE, _LOCK):
            (work / name).unlink(missing_ok=True)
        work.rename(out)


def stored_dtype(checkpoint: Checkpoint) -> torch.dtype:
    """The 16-bit type that config.json says the weights have; bfloat16 where it says another or none."""
    name = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    return torch.float16 if name == "float16" else torch.bfloat16


def _whole(source: Path) -> Checkpoint:
    """The checkpoint, of a folder with whole weights. Raises JobError, CheckpointError."""
    if not source.is_dir():
        raise JobError(f"{source}: convert it to a folder first: python -m backends.convert {source} FOLDER")
    checkpoint = open_checkpoint(source)
    if (method := checkpoint.config.get("quantization_config")) is not None:
        named = method.get("quant_method") if isinstance(method, dict) else method
        raise JobError(f"{source}: is quantised already ({named}); start from the whole weights")
    if prefix_of(checkpoint) != "model.":
        raise JobError(f"{source}: is a text model inside a larger one, which is not supported")
    return checkpoint


def _check_shapes(checkpoint: Checkpoint, config: DecoderConfig, scheme: Scheme, order: Order) -> None:
    """All blocks are alike, so the first tells before hours of work. Raises JobError."""
    group = order.settings.group
    first = Subject(checkpoint, config, f"{BLOCKS}0", scheme, torch.device("cpu"))
    _refuse_unknown(checkpoint, {name.removeprefix(f"{BLOCKS}0.") for name in first.read})
    for each in first.linears:
        columns = each.columns
        if group and columns % group:
            fits = [width for width in (128, 64, 32) if columns % width == 0]
            other = f"{fits[0]} does" if fits else "0, whole rows, does"
            raise JobError(
                f"--group: {group} does not divide the {columns} columns of {each.names[0]}; {other}"
            )
        each.check_packing()


def _refuse_unknown(checkpoint: Checkpoint, known: set[str]) -> None:
    """`known`: names of tensors within a block. Raises JobError for one that would be left out."""
    for name in sorted(checkpoint.names()):
        within = name.removeprefix(BLOCKS).partition(".")[2]
        # Old checkpoints hold the frequencies of the rope.
        if name.startswith(BLOCKS) and within not in known and not name.endswith(".rotary_emb.inv_freq"):
            raise JobError(f"{name}: the checkpoint has it, the architecture does not")


def _enter(work: Path, order: Order) -> None:
    """Begin, or go on with what is there. Raises JobError where that is another job's."""
    job = Job(
        layout=LAYOUT,
        source=fingerprint(order.source),
        settings=order.settings,
        calibration=order.calibration if order.settings.calibrated else None,
    )
    path = work / _JOB
    if order.restart:
        _clear(work)
    if path.exists():
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Job)
        except msgspec.MsgspecError:
            found = None
        if found != job and any(work.glob("model-*.safetensors")):
            raise JobError(
                f"{work} holds blocks of {_difference(found, job)}; --restart throws them away, "
                "the same command as before goes on with them"
            )
        if found == job:
            return
    _clear(work)
    path.write_bytes(msgspec.json.encode(job))


def _difference(found: Job | None, job: Job) -> str:
    if found is None or found.layout != job.layout:
        return "another version"
    if found.source != job.source:
        return "another model"
    if found.calibration != job.calibration:
        return f"another calibration ({found.calibration})"
    fields = [
        f"{name} {getattr(found.settings, name)}"
        for name in Settings.__struct_fields__
        if getattr(found.settings, name) != getattr(job.settings, name)
    ]
    return f"other settings ({', '.join(fields)})"


def _clear(work: Path) -> None:
    for file in work.iterdir():
        if file.name != _LOCK:
            file.unlink()


def _passage(work: Path, order: Order, checkpoint: Checkpoint, config: DecoderConfig) -> Passage:
    """The calibration as far as it has come; without one only the number of blocks that are done."""
    if not order.settings.calibrated:
        count = config.layers + 1
        done = next(
            n for n in range(count) if not (work / shard(n + 1, count)).exists() or n == config.layers
        )
        return Passage(config, done)
    path = work / _CALIBRATION
    if not path.exists():
        write_tensors(path, {"ids": order.calibrate()})
    ids = load_file(path)["ids"]
    if (work / _STATE).exists():
        return Passage.load(work / _STATE, config, ids, order.device)
    embedding = checkpoint.load(EMBEDDING, torch.float32).to(order.device)
    return Passage.begin(config, ids, embedding)


@contextlib.contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Nobody else works in the folder meanwhile. Raises JobError."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(f"{work}: another process works there") from error
        yield
