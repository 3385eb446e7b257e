"""The loop in a real process, over real sockets; only the engine behind it is a fake."""

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from backends.engine.mailbox import AT_ONCE
from backends.frames import MAX_MESSAGE, Frames, framed
from backends.wire import (
    Abort,
    EngineConfig,
    Event,
    Evicted,
    Load,
    Message,
    Output,
    Outputs,
    Refused,
    Sampling,
    Snapshot,
    Stored,
    Submit,
    Subscribe,
    decode_from_engine,
    encode,
    socket_path,
)

Start = Callable[..., subprocess.Popen[str]]
EventType = TypeVar("EventType", bound=Event)


class Client:
    """A gateway's end of the wire, without any cleverness."""

    def __init__(self, config: EngineConfig) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(60)
        wait_until(lambda: self.connection.connect_ex(config.socket) == 0)
        self.frames = Frames()
        self.answers: deque[Outputs | Refused] = deque()
        self.events: deque[Event] = deque()

    def send(self, message: Message) -> None:
        self.connection.sendall(framed(encode(message)))

    def submit(self, id: str, prompt: bytes, max_tokens: int) -> None:
        self.send(Submit(id=id, prompt=list(prompt), sampling=Sampling(max_tokens=max_tokens)))

    def read(self) -> None:
        """Wait for more, and sort it."""
        data = self.connection.recv(65536)
        assert data, "the engine has hung up"
        for body in self.frames.take(data):
            message = decode_from_engine(body)
            if isinstance(message, Outputs | Refused):
                self.answers.append(message)
            else:
                self.events.append(message)

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes."""
        return not select.select([self.connection], [], [], seconds)[0]

    def answer(self) -> Outputs | Refused:
        while not self.answers:
            self.read()
        return self.answers.popleft()

    def outputs(self, id: str) -> list[Output]:
        """All of one generation; others' are dropped."""
        found: list[Output] = []
        while not found or found[-1].finish is None:
            answer = self.answer()
            assert isinstance(answer, Outputs)
            found += [output for output in answer.items if output.id == id]
        return found

    def text(self, id: str) -> bytes:
        return bytes(token for output in self.outputs(id) for token in output.ids)

    def event(self, kind: type[EventType]) -> EventType:
        while True:
            while not self.events:
                self.read()
            event = self.events.popleft()
            if isinstance(event, kind):
                return event

    def join(self, keys: bool = True) -> Load:
        self.send(Subscribe(keys))
        return self.event(Load)

    def settle(self, holds: Callable[[Load], bool]) -> Load:
        """The first load of which something holds."""
        while not holds(load := self.event(Load)):
            pass
        return load


@pytest.fixture
def start(fake_command: list[str], runtime: Path) -> Iterator[Start]:
    """Starts the process of an engine; its stdout and stderr are in `.stdout`."""
    started: list[subprocess.Popen[str]] = []

    def start(config: EngineConfig, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        file = runtime / f"{config.name.replace('/', '-')}.json"
        file.write_bytes(msgspec.json.encode(config))
        process = subprocess.Popen(
            [*fake_command, str(file), *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def connect() -> Iterator[Callable[[EngineConfig], Client]]:
    made: list[Client] = []

    def connect(config: EngineConfig) -> Client:
        made.append(Client(config))
        return made[-1]

    yield connect
    for client in made:
        client.connection.close()


@pytest.fixture
def config(engine_config: Callable[..., EngineConfig]) -> EngineConfig:
    return engine_config()


@pytest.fixture
def client(start: Start, connect: Callable[[EngineConfig], Client], config: EngineConfig) -> Client:
    """Of an engine that runs."""
    start(config)
    client = connect(config)
    client.join()
    return client


def test_one_message_a_step_holds_all_generations_of_a_sender(client: Client) -> None:
    client.submit("a", b"abc", 60)
    client.submit("b", b"xy", 60)
    messages = [client.answer() for _ in range(50)]
    assert any(
        isinstance(message, Outputs) and [output.id for output in message.items] == ["a", "b"]
        for message in messages
    )


def test_answers_go_to_their_sender_though_ids_are_equal(
    client: Client, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    other = connect(config)
    client.submit("a", b"mine", 8)
    other.submit("a", b"yours", 10)
    assert client.text("a") == b"minemine"
    assert other.text("a") == b"yoursyours"


def test_a_refusal_comes_back(client: Client) -> None:
    client.submit("a", b"too long", 8)
    assert client.answer() == Refused(id="a", code="context_length_exceeded", message="8 tokens of at most 7")


def test_a_refusal_may_come_later(client: Client) -> None:
    client.submit("other", b"mine", 8)
    client.submit("a", b"too odd", 8)
    answers = [client.answer() for _ in range(8)]
    while not any(isinstance(answer, Refused) for answer in answers):
        answers.append(client.answer())
    (refused,) = [answer for answer in answers if isinstance(answer, Refused)]
    assert refused == Refused(id="a", code="invalid", message="sampling.grammar: it makes no sense")


def test_an_aborted_generation_says_no_more(client: Client) -> None:
    client.submit("a", b"abc", 100_000)
    client.answer()
    client.send(Abort(id="a"))
    client.send(Abort(id="unknown"))
    assert client.settle(lambda load: load.running == 0)
    client.answers.clear()
    assert client.quiet(0.05)


def test_work_of_a_sender_that_is_gone_is_aborted(
    client: Client, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    gone = connect(config)
    gone.submit("a", b"abc", 100_000)
    gone.answer()
    client.settle(lambda load: load.running == 1)
    gone.connection.close()
    client.settle(lambda load: load.running == 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage \xff\x00",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "Subscribe", "keys": True, "more": 1}),
        msgspec.msgpack.encode({"type": "Explode"}),
        msgspec.msgpack.encode({"type": "Submit", "id": "a", "prompt": ["x"], "sampling": {}}),
        encode(Subscribe(True)) + b"more",
    ],
    ids=["empty", "garbage", "reserved", "deep", "unknown field", "unknown type", "wrong types", "too long"],
)
def test_a_malformed_message_is_dropped(client: Client, body: bytes) -> None:
    client.connection.sendall(framed(body))
    client.submit("a", b"abc", 3)
    assert client.text("a") == b"abc"


def test_a_sender_of_what_are_no_messages_is_dropped_with_its_work(
    client: Client, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    other = connect(config)
    other.submit("a", b"abc", 100_000)
    other.answer()
    client.settle(lambda load: load.running == 1)
    other.connection.sendall((MAX_MESSAGE + 1).to_bytes(4, "big"))
    client.settle(lambda load: load.running == 0)
    with pytest.raises((AssertionError, ConnectionError)):
        while True:
            other.read()
    client.submit("a", b"abc", 3)
    assert client.text("a") == b"abc"


def test_a_message_may_come_in_pieces_and_with_others(client: Client) -> None:
    long = bytes(range(97, 123)) * 20_000  # longer than what is read at once
    assert len(long) > AT_ONCE
    sent = b"".join(
        framed(encode(Submit(id=id, prompt=list(prompt), sampling=Sampling(max_tokens=30))))
        for id, prompt in (("a", b"abc"), ("b", long), ("c", b"xyz"))
    )
    for start in range(0, 200, 7):
        client.connection.sendall(sent[start : start + 7])
        time.sleep(0.001)
    client.connection.sendall(sent[203:])
    texts = {"a": b"", "b": b"", "c": b""}
    while min(map(len, texts.values())) < 30:
        answer = client.answer()
        assert isinstance(answer, Outputs)
        for output in answer.items:
            texts[output.id] += bytes(output.ids)
    assert texts == {"a": b"abc" * 10, "b": long[:30], "c": b"xyz" * 10}


def test_a_gateway_that_does_not_read_stops_nobody(
    start: Start, connect: Callable[[EngineConfig], Client], engine_config: Callable[..., EngineConfig]
) -> None:
    config = engine_config(model="quick")
    start(config)
    deaf, client = connect(config), connect(config)
    client.join()
    deaf.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.submit("a", b"abc", 20_000)  # more than the kernel holds
    client.submit("b", b"xyz", 24_000)
    assert len(client.text("b")) == 24_000
    assert deaf.text("a") == b"abc" * 6666 + b"ab"


def test_a_subscriber_that_has_not_read_is_told_all_when_it_has(
    start: Start, connect: Callable[[EngineConfig], Client], engine_config: Callable[..., EngineConfig]
) -> None:
    """And what it was not told meanwhile takes no room."""
    config = engine_config(model="quick")
    process = start(config)
    deaf, client = connect(config), connect(config)
    deaf.join()
    client.join(keys=False)
    before = resident(process.pid)
    for number in range(300):  # of 100,000 bytes each
        client.submit("a", b"%06d" % number + b"x" * 100_000, 1)
        client.text("a")
    assert resident(process.pid) - before < 15e6
    snapshots: list[Snapshot] = []
    while not snapshots:
        deaf.read()
        snapshots = [event for event in deaf.events if isinstance(event, Snapshot)]
    assert [key[:6] for key in snapshots[0].keys] == [b"%06d" % number for number in range(296, 300)]
    told = [event for event in deaf.events if isinstance(event, Stored)]
    assert 0 < len(told) < 100
    client.submit("a", b"more", 1)
    assert deaf.settle(lambda load: load.generation_tokens == 301)


def test_only_who_asks_is_told_of_the_cache(
    client: Client, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    other, third = connect(config), connect(config)
    other.join(keys=False)
    third.submit("a", b"first", 1)
    assert third.text("a") == b"f"
    assert client.event(Stored).keys == [b"first"]
    client.settle(lambda load: load.generation_tokens == 1)
    other.settle(lambda load: load.generation_tokens == 1)
    assert other.quiet(0.05)
    assert third.quiet(0.05)
    assert not [event for event in (*other.events, *third.events) if not isinstance(event, Load)]


def test_cache_events_come_in_order_and_fit_the_snapshot(client: Client) -> None:
    for prompt in (b"first", b"second", b"third", b"fourth"):
        client.submit("a", prompt, 1)
        assert client.event(Stored) == Stored(engine="e/0", keys=[prompt])
    client.submit("a", b"fifth", 1)
    assert client.event(Evicted) == Evicted(engine="e/0", keys=[b"first"])
    assert client.event(Stored) == Stored(engine="e/0", keys=[b"fifth"])
    client.send(Subscribe(keys=True))
    snapshot = client.event(Snapshot)
    assert snapshot.block_size == 16
    assert snapshot.keys == [b"second", b"third", b"fourth", b"fifth"]


def test_an_answer_comes_after_what_it_has_left_in_the_cache(client: Client) -> None:
    """Else who asks on at once would not be known to have anything there."""
    for number in range(50):
        client.submit("a", b"prompt %d" % number, 1)
        assert client.text("a") == b"p"
        assert [event.keys for event in client.events if isinstance(event, Stored)] == [
            [b"prompt %d" % number]
        ]
        client.events.clear()


def test_each_start_is_another_incarnation(
    start: Start, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    seen = []
    for _ in range(2):
        process, client = start(config), connect(config)
        seen.append(client.join().incarnation)
        process.terminate()
        process.wait()
    assert "" not in seen
    assert seen[0] != seen[1]


def test_load_is_told_while_working_and_when_falling_idle(client: Client) -> None:
    client.submit("a", b"abc", 200)  # about 0.4 s
    loads = [client.settle(lambda load: load.running == 1)]
    while loads[-1].running:
        loads.append(client.event(Load))
    assert 2 <= len(loads) <= 50  # far fewer than steps
    assert loads[-1].generation_tokens == 200
    assert client.quiet(0.3)


def test_the_shortest_work_is_in_the_load(client: Client) -> None:
    client.submit("a", b"abc", 1)
    client.settle(lambda load: load.generation_tokens == 1 and load.running == 0)


def test_idle_engines_use_no_cpu(
    start: Start, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    process, client = start(config), connect(config)
    client.join()
    client.submit("a", b"abc", 3)
    client.text("a")
    client.settle(lambda load: load.running == 0)
    before = cpu_seconds(process.pid)
    time.sleep(2)
    assert cpu_seconds(process.pid) - before < 0.05


def test_its_socket_is_for_this_user_alone(client: Client, config: EngineConfig) -> None:
    assert stat.S_IMODE(socket_path(config.socket).stat().st_mode) == 0o600


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_quietly(
    start: Start, connect: Callable[[EngineConfig], Client], config: EngineConfig, signum: int
) -> None:
    process, client = start(config), connect(config)
    client.join()
    client.submit("a", b"abc", 100_000)
    client.answer()
    process.send_signal(signum)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signum
    assert "Traceback" not in output


def test_a_bug_ends_it_loudly(
    start: Start, connect: Callable[[EngineConfig], Client], config: EngineConfig
) -> None:
    process, client = start(config), connect(config)
    client.join()
    client.submit("a", b"crash", 1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RuntimeError: the engine has a bug" in output


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"socket": "relative"}, "the path must be absolute"),
        ({"socket": "/tmp/" + "x" * 200}, "at most 107 bytes"),
        ({"socket": "/nowhere/socket"}, "No such file or directory"),
        ({"lease": "/nowhere/lease"}, "No such file or directory: '/nowhere/lease'"),
        ({"model": "broken"}, "model 'broken' has no weights"),
    ],
    ids=["relative", "long", "nowhere", "lease", "model"],
)
def test_what_keeps_it_from_starting_is_said(
    start: Start, engine_config: Callable[..., EngineConfig], changes: dict[str, str], reason: str
) -> None:
    process = start(engine_config(**changes))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert reason in output


def test_what_is_there_at_the_start_is_not_gone_through_again(config: EngineConfig, tmp_path: Path) -> None:
    """Python looks for cycles in all objects now and then, and everybody's next token waits for it."""
    script = (
        "import gc; from backends.engine import process;"
        "process.EngineLoop.__init__ = lambda *given: None;"
        "process.EngineLoop.run = lambda self: print(gc.get_freeze_count());"
        "process.main(lambda config: (None, print))"
    )
    file = tmp_path / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    said = subprocess.run(
        [sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True
    )
    assert int(said.stdout) > 1000


def test_it_dies_with_its_parent(config: EngineConfig, fake_command: list[str], runtime: Path) -> None:
    file = runtime / "config.json"
    file.write_bytes(msgspec.json.encode(config))
    script = (
        "import os, subprocess, sys;"
        "engine = subprocess.Popen([*sys.argv[1:], '--parent', str(os.getpid())], stdout=subprocess.DEVNULL);"
        "print(engine.pid, flush=True); engine.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *fake_command, str(file)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        wait_until(socket_path(config.socket).exists)
        parent.kill()
    wait_until(lambda: not running(engine))


def test_a_parent_that_is_gone_already_is_noticed(start: Start, config: EngineConfig) -> None:
    process = start(config, "--parent", "1")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "process 1, which started this one, is gone" in output


def test_cores_are_shared_between_engines_that_work(
    start: Start,
    connect: Callable[[EngineConfig], Client],
    engine_config: Callable[..., EngineConfig],
    runtime: Path,
) -> None:
    lease = str(runtime / "lease")
    configs = [engine_config(name, lease=lease, cores=2) for name in ("e/0", "e/1")]
    processes = [start(config) for config in configs]
    first, second = (connect(config) for config in configs)
    first.join()
    second.join()
    first.submit("a", b"abc", 100_000)
    assert processes[0].stdout is not None
    assert processes[1].stdout is not None
    assert processes[0].stdout.readline() == "threads 2\n"
    second.submit("b", b"abc", 300)  # long enough for the first to see
    assert processes[1].stdout.readline() == "threads 1\n"
    assert processes[0].stdout.readline() == "threads 1\n"
    assert processes[0].stdout.readline() == "threads 2\n"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def running(pid: int) -> bool:
    """Not for zombies, which nobody may reap where the tests run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
