import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from backends.supervisor import EngineStartError, Supervisor
from backends.wire import EngineConfig, Speculation, Vocabulary

Config = Callable[..., EngineConfig]


async def test_engines_run_until_stopped_and_leave_nothing(
    engine_config: Config, fake_command: list[str], runtime: Path
) -> None:
    supervisor = Supervisor([engine_config("7b/0"), engine_config("13b/0")], command=fake_command)
    before = set(runtime.iterdir())
    await supervisor.start()
    pids = supervisor.pids
    assert sorted(pids) == ["13b/0", "7b/0"]
    assert all(alive(pid) for pid in pids.values())
    assert supervisor.restarts == {"7b/0": 0, "13b/0": 0}
    await supervisor.stop()
    await supervisor.stop()
    assert not any(alive(pid) for pid in pids.values())
    assert supervisor.pids == {}
    assert set(runtime.iterdir()) == before


async def test_engines_start_side_by_side(engine_config: Config, fake_command: list[str]) -> None:
    configs = [engine_config(f"stuck/{number}", model="stuck") for number in range(3)]
    supervisor = Supervisor(configs, command=fake_command)
    start = asyncio.create_task(supervisor.start())
    await until(lambda: len(supervisor.pids) == 3)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start


async def test_engines_have_sessions_of_their_own(engine_config: Config, fake_command: list[str]) -> None:
    async with Supervisor([engine_config()], command=fake_command) as supervisor:
        assert os.getsid(supervisor.pids["e/0"]) == supervisor.pids["e/0"]


async def test_a_dead_engine_is_started_again(
    engine_config: Config, fake_command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with Supervisor([engine_config()], command=fake_command) as supervisor:
        first = supervisor.pids["e/0"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: supervisor.pids.get("e/0", first) != first)
        assert supervisor.restarts == {"e/0": 1}
    assert "engine e/0 ended with SIGKILL" in caplog.text


async def test_an_engine_that_keeps_dying_is_started_more_and_more_slowly(
    engine_config: Config, fake_command: list[str]
) -> None:
    async with Supervisor([engine_config()], command=fake_command) as supervisor:
        times = []
        for deaths in range(1, 4):
            os.kill(supervisor.pids["e/0"], signal.SIGKILL)
            began = time.monotonic()
            await until(partial(started_again, supervisor, deaths))
            times.append(time.monotonic() - began)
    assert times[0] >= 0.2
    assert times[1] >= 0.4
    assert times[2] >= 0.8


async def test_an_engine_that_cannot_start_says_why(
    engine_config: Config, fake_command: list[str], runtime: Path
) -> None:
    supervisor = Supervisor(
        [engine_config("7b/0"), engine_config("13b/0", model="broken")], command=fake_command
    )
    with pytest.raises(EngineStartError) as error:
        await supervisor.start()
    first, *log = str(error.value).splitlines()
    assert first == (
        "engine 13b/0 ended with exit status 1 before it answered: ValueError: model 'broken' has no weights"
    )
    assert "Traceback" in log[0]
    assert supervisor.pids == {}
    assert not list(runtime.glob("*.socket"))


async def test_an_engine_that_takes_too_long_is_given_up(
    engine_config: Config, fake_command: list[str]
) -> None:
    supervisor = Supervisor([engine_config(model="stuck")], command=fake_command, ready_timeout=6.0)
    with pytest.raises(EngineStartError, match=r"engine e/0 did not answer within 6 s: loading for a minute"):
        await supervisor.start()
    assert supervisor.pids == {}


async def test_a_cancelled_start_leaves_nothing(engine_config: Config, fake_command: list[str]) -> None:
    supervisor = Supervisor([engine_config(model="stuck")], command=fake_command)
    start = asyncio.create_task(supervisor.start())
    await until(lambda: bool(supervisor.pids))
    pid = supervisor.pids["e/0"]
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not alive(pid)


async def test_an_engine_deaf_to_sigterm_is_killed(engine_config: Config, fake_command: list[str]) -> None:
    async with Supervisor([engine_config(model="deaf")], command=fake_command) as supervisor:
        pid = supervisor.pids["e/0"]
        began = time.monotonic()
    assert time.monotonic() - began >= 2
    assert not alive(pid)


async def test_an_engines_log_comes_out_behind_its_name(
    engine_config: Config, fake_command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with Supervisor([engine_config(model="chatty")], command=fake_command):
        pass
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "backends.engine"]
    assert "[e/0] hello" in lines
    assert sum(len(line) for line in lines) >= 300_000  # one line longer than any buffer, cut into several
    assert all(line.startswith("[e/0] ") for line in lines)


def test_engines_die_with_a_killed_supervisor(
    engine_config: Config, fake_command: list[str], runtime: Path
) -> None:
    script = (
        "import asyncio, json, sys, msgspec\n"
        "from backends.supervisor import Supervisor\n"
        "from backends.wire import EngineConfig\n"
        "async def main():\n"
        "    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)\n"
        "    async with Supervisor([config], command=sys.argv[2:]) as supervisor:\n"
        "        print(supervisor.pids['e/0'], flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    config = msgspec.json.encode(engine_config()).decode()
    with subprocess.Popen(
        [sys.executable, "-c", script, config, *fake_command],
        env={**os.environ, "TMPDIR": str(runtime)},  # what a killed process leaves behind
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    end = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("field", ["name", "socket"])
def test_engines_must_not_share(engine_config: Config, field: str) -> None:
    one, other = engine_config("7b/0"), engine_config("13b/0")
    other = msgspec.structs.replace(other, **{field: getattr(one, field)})
    with pytest.raises(ValueError, match=f"two engines have the {field}"):
        Supervisor([one, other])


def test_paths_of_sockets_are_checked_at_once(engine_config: Config) -> None:
    with pytest.raises(ValueError, match="absolute"):
        Supervisor([engine_config(socket="relative")])


async def test_vocabularies_are_written_and_removed(
    engine_config: Config, fake_command: list[str], byte_model: Path, runtime: Path
) -> None:
    paths = [runtime / f"{number}.vocabulary" for number in range(2)]
    configs = [engine_config(f"e/{path.stem}", model=str(byte_model), vocabulary=str(path)) for path in paths]
    async with Supervisor(configs, command=fake_command):
        for path in paths:
            vocabulary = msgspec.msgpack.decode(path.read_bytes(), type=Vocabulary)
            assert vocabulary.data == [bytes([byte]) for byte in range(256)]
    assert not any(path.exists() for path in paths)


async def test_a_model_without_tokenizer_is_named(engine_config: Config, runtime: Path) -> None:
    config = engine_config("7b/0", model=str(runtime), vocabulary=str(runtime / "absent"))
    with pytest.raises(EngineStartError, match="engine 7b/0: no vocabulary: .*tokenizer.json"):
        await Supervisor([config]).start()


async def test_a_draft_with_another_vocabulary_is_refused_by_name(
    engine_config: Config, runtime: Path, byte_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(byte_model, other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[70:72]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    file.write_text(json.dumps(tokenizer))
    speculation = Speculation(method="draft", draft=str(other))
    config = engine_config(
        "7b/0", model=str(byte_model), vocabulary=str(runtime / "v"), speculation=speculation
    )
    with pytest.raises(
        EngineStartError, match="engine 7b/0: speculation.draft: .*other has another vocabulary"
    ):
        await Supervisor([config]).start()


def started_again(supervisor: Supervisor, times: int) -> bool:
    return supervisor.restarts["e/0"] == times and "e/0" in supervisor.pids


def alive(pid: int) -> bool:
    """Not for zombies, which nobody may reap where the tests run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
