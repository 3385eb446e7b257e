"""The command line: what it prints, and how it fails."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.cli import main
from gateway.configfile import parse_config
from gateway.tenants import Tenants, server_secret

CONFIG = """
server: {port: 0}
state: {folder: STATE}
anonymous: {name: anonymous}
tiers:
  - name: 7b
    remotes: [{url: "http://127.0.0.1:9/v1", model: m}]
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "headrace.yaml"
    file.write_text(CONFIG.replace("STATE", str(tmp_path / "state")))
    return file


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["swim"],
        ["serve", "--port", "-1"],
        ["serve", "--port", "65536"],
        ["serve", "--port", "x"],
        ["serve", "--workers", "0"],
        ["serve", "--workers", "65"],
        ["serve", "--preset", "tiny", "--config", "x.yaml"],
        ["serve", "again"],
        ["models"],
        ["models", "push"],
        ["keys"],
        ["keys", "new", "--config", "x.yaml", "--not-after", "2030-01-31"],
        ["keys", "new", "--config", "x.yaml", "--not-after", "2020-01-31T12:00:00Z"],
        ["keys", "new", "--config", "x.yaml", "--tenant", "a b"],
        ["keys", "list"],
        ["config", "check"],
    ],
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: headrace")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--preset", "tinny"], "presets: tinny: no such preset; did you mean tiny?"),
        (["serve", "--config", "no.yaml"], "no.yaml: cannot be read: No such file or directory"),
        (["serve", "--preset", "tiny", "--host", "0.0.0.0"], "command line: server.host: must be a loopback address"),
        (["models", "pull", "smollm"], "model 'smollm' is neither in the catalogue"),
        (["models", "pull", "--preset", "big"], "presets: big: no such preset"),
        (["keys", "new", "--config", "no.yaml"], "no.yaml: cannot be read"),
        (["config", "check", "no.yaml"], "no.yaml: cannot be read"),
    ],
)  # fmt: skip
def test_an_operators_mistake_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(told)
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_draft_of_another_vocabulary_is_a_mistake(
    letters_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(letters_model, other)
    file = tmp_path / "headrace.yaml"
    speculation = f"speculation: {{method: draft, draft: {other}}}"
    file.write_text(
        f"anonymous: {{name: a}}\ntiers: [{{name: 7b, engines: [{{model: {letters_model}, {speculation}}}]}}]"
    )
    assert main(["config", "check", str(file)]) == 0
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[70:72]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert main(["config", "check", str(file)]) == 2
    told = f"2: tiers[0].engines[0].speculation.draft: {other} has another vocabulary than {letters_model}"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("model: FOLDER/config.json", "model: FOLDER/config.json is neither a folder nor a .gguf file"),
        ("model: FOLDER/empty", "model: FOLDER/empty has no config.json"),
        ("model: FOLDER/torn", "model: FOLDER/torn/config.json: is not JSON"),
        ("model: FOLDER, max_model_len: 4096", "max_model_len: 4096 is more than the 2048 tokens of FOLDER"),
        ("model: FOLDER, speculation: {method: draft, draft: FOLDER/empty}", "speculation.draft: FOLDER/empty has no"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_that_is_here_is_told(
    engine: str, told: str, letters_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(letters_model, folder)
    (folder / "empty").mkdir()
    shutil.copytree(letters_model, folder / "torn")
    (folder / "torn" / "config.json").write_text("{")
    file = tmp_path / "headrace.yaml"
    engine = engine.replace("FOLDER", str(folder))
    file.write_text(f"anonymous: {{name: a}}\ntiers: [{{name: 7b, engines: [{{{engine}}}]}}]")
    assert main(["config", "check", str(file)]) == 2
    assert f"tiers[0].engines[0].{told.replace('FOLDER', str(folder))}" in capsys.readouterr().err


def test_that_nobody_can_call_is_told(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "no tenant has a key, and there is no anonymous one: every request is answered with 401"
    shut = config_file.read_text().replace("anonymous: {name: anonymous}", "tenants: [{name: a}]")
    config_file.write_text(shut)
    assert main(["config", "check", str(config_file)]) == 0
    assert told in capsys.readouterr().out
    config_file.write_text(
        shut.replace("{name: a}", f"{{name: a, keys: [{{prefix: hr_abcdefgh, digest: {'a' * 64}}}]}}")
    )
    assert main(["config", "check", str(config_file)]) == 0
    out = capsys.readouterr().out
    assert told not in out
    unadministered = "no tenant with a key is an admin"
    assert unadministered in out
    config_file.write_text(config_file.read_text().replace("{name: a, ", "{name: a, admin: true, "))
    assert main(["config", "check", str(config_file)]) == 0
    assert unadministered not in capsys.readouterr().out


def test_every_mistake_of_a_file_is_told(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(config_file)]) == 0
    assert capsys.readouterr().out == f"{config_file}: no mistakes\n"
    config_file.write_text(CONFIG + "colour: red\nalias: {}\n")
    assert main(["config", "check", str(config_file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines] == ["8", "9"]


def test_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"tiers", "tenants", "server"} <= set(schema["$defs"]["Config"]["properties"])


def test_a_key_opens_what_its_lines_say(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "team", "--config", str(config_file)]) == 0
    first, lines = capsys.readouterr().out.split("\n", 1)
    key = first.rpartition(" ")[2]
    printed = lines[lines.index("tenants:") :]
    config = parse_config(config_file.read_text() + printed, "x")
    assert Tenants(config, server_secret(config)).find(key).name == "team"
    assert key not in printed
    assert yaml.safe_load(printed)["tenants"][0]["keys"][0]["prefix"] == key[:10]


def test_keys_are_listed_with_their_ends(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = config_file.read_text() + "tenants:\n  - name: team\n    keys:\n"
    for end in ("", "--not-after=2998-02-03T04:05:06Z", "--not-after=2999-01-01T00:00:00+02:00"):
        assert main(["keys", "new", "--config", str(config_file), *filter(None, [end])]) == 0
        text += capsys.readouterr().out.splitlines()[-1] + "\n"
    config_file.write_text(text.replace("2998", "2001"))  # time passes
    assert main(["keys", "list", "--config", str(config_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub("hr_.{7}", "hr_", line) for line in lines] == [
        "team  hr_  valid",
        "team  hr_  ended 2001-02-03T04:05:06+00:00",
        "team  hr_  valid until 2999-01-01T00:00:00+02:00",
    ]


def test_the_catalogue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path))
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"smollm2-135m-instruct +98\.4 MB  absent  Apache-2\.0", lines[0])


@pytest.mark.models
def test_pulling_what_is_there(smollm2_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "--preset", "tiny"]) == 0
    assert capsys.readouterr().out == f"smollm2-135m-instruct: {smollm2_folder}\n"


def test_train_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: headrace train")


def command_for(config_file: Path) -> list[str]:
    return [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config_file)]


def serve(config_file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_for(config_file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_evaluating_the_router_is_handed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["evaluate", "router", "--help"])
    assert left.value.code == 0
    assert "--pair CHEAP,DEAR" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main(["evaluate", "nothing"])
    assert refused.value.code == 2


def test_the_ready_line_and_a_command_that_works(config_file: Path) -> None:
    with serve(config_file) as process:
        assert process.stdout is not None
        ready, command = process.stdout.readline(), process.stdout.readline()
        assert re.fullmatch(r"Headrace is ready at http://127\.0\.0\.1:\d+/v1 with 7b \(m\)\. Try:\n", ready)
        pasted = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        # nothing runs behind that tier, so this is as far as it goes
        assert json.loads(pasted.stdout)["error"]["type"] == "server_error"
        page = process.stdout.readline()
        assert re.fullmatch(r"Watch it at http://127\.0\.0\.1:\d+/dashboard\n", page)
        with urllib.request.urlopen(page.split()[-1]) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert all(json.loads(line) for line in errors.splitlines())


def test_the_command_names_a_key_where_one_is_needed(config_file: Path) -> None:
    config_file.write_text(config_file.read_text().replace("anonymous: {name: anonymous}", ""))
    with serve(config_file) as process:
        assert process.stdout is not None
        process.stdout.readline()
        command = process.stdout.readline()
        environment = os.environ | {"HEADRACE_KEY": "hr_unknown"}
        pasted = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=True, env=environment
        )
        assert json.loads(pasted.stdout)["error"]["code"] == "invalid_api_key"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_the_configuration_changes_on_a_hang_up(config_file: Path) -> None:
    config_file.write_text(config_file.read_text().replace("{port: 0}", "{port: 0, admin: {port: 0}}"))
    with serve(config_file) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        front, admin = (re.search(r"http://127\.0\.0\.1:\d+", said[n]) for n in (0, 2))
        assert front is not None and admin is not None
        config_file.write_text(config_file.read_text() + "aliases: {gpt-4o: auto}\n")
        process.send_signal(signal.SIGHUP)
        for _ in range(1200):
            if httpx.get(f"{admin[0]}/admin/config").json()["number"] == 2:
                break
            time.sleep(0.05)
        names = [model["id"] for model in httpx.get(f"{front[0]}/v1/models").json()["data"]]
        assert names == ["auto", "7b", "gpt-4o"]
        assert httpx.get(f"{front[0]}/metrics").status_code == 404
        assert "headrace_config_version 2.0" in httpx.get(f"{admin[0]}/metrics").text
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_port_that_is_taken(config_file: Path) -> None:
    with serve(config_file) as first:
        assert first.stdout is not None
        port = re.search(r":(\d+)/", first.stdout.readline())
        assert port is not None
        config_file.write_text(config_file.read_text().replace("port: 0", f"port: {port[1]}"))
        second = subprocess.run(command_for(config_file), capture_output=True, text=True, timeout=60)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert second.returncode == 2
    assert second.stderr == f"cannot listen on 127.0.0.1:{port[1]}: Address already in use\n"


def test_help_is_quick() -> None:
    """It loads nothing that only other commands need."""
    program = "import sys; from gateway.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "gateway.cli" in loaded
    assert not loaded & {"starlette", "uvicorn", "msgspec", "numpy", "httpx", "opentelemetry", "yaml"}


def test_output_that_nobody_reads() -> None:
    command = f"{sys.executable} -m gateway.cli config schema | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "program"),
    [(["train"], "classifier.train.main"), (["evaluate", "router"], "classifier.evaluate.main")],
)
@pytest.mark.parametrize(("ends", "status"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_programs_of_their_own_end_as_quietly(
    monkeypatch: pytest.MonkeyPatch, words: list[str], program: str, ends: type[BaseException], status: int
) -> None:
    def stopped(words: list[str]) -> int:
        raise ends

    monkeypatch.setattr(program, stopped)
    monkeypatch.setattr("gateway.cli.os.dup2", lambda one, other: None)
    assert main(words) == status
