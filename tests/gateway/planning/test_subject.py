"""Where a model's shape is read, from a folder to a server that behaves like the Hub."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.planning.published import PUBLISHED
from gateway.planning.subject import subject

CONFIG = PUBLISHED["llama-2-7b"]
ANSWERS: dict[str, tuple[int, bytes]] = {
    "/someone/model/resolve/main/config.json": (200, json.dumps(CONFIG).encode()),
    "/someone/packed/resolve/main/config.json": (
        200,
        json.dumps({**CONFIG, "quantization_config": {"quant_method": "awq"}}).encode(),
    ),
    "/someone/broken/resolve/main/config.json": (200, b"<html>"),
    "/someone/list/resolve/main/config.json": (200, b"[]"),
    "/someone/mamba/resolve/main/config.json": (200, b'{"model_type": "mamba"}'),
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/someone/gated/resolve/main/config.json":
            known = self.headers.get("authorization") == "Bearer hf_secret"
            status, body = (200, json.dumps(CONFIG).encode()) if known else (401, b"")
        else:
            status, body = ANSWERS.get(self.path, (404, b""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 3}))
    found = subject(str(tmp_path))
    assert (found.config.layers, found.source, found.kind) == (3, f"{tmp_path}/config.json", "llama")


def test_a_pulled_model_of_the_catalogue_is_read_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_MODELS", str(tmp_path))
    assert subject("smollm2-135m-instruct").source == "the table of well-known shapes"
    assert subject("smollm2-135m-instruct").config.layers == 30


def test_a_model_of_the_hub(hub: str) -> None:
    found = subject("someone/model")
    assert (found.config.layers, found.source) == (32, f"{hub}/someone/model/resolve/main/config.json")
    assert subject("someone/packed").config == found.config  # a plan counts formats by itself


def test_a_token_opens_what_asks_for_consent(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="answers 401: .*HF_TOKEN opens it"):
        subject("someone/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert subject("someone/gated").config.layers == 32


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("someone/else", "answers 404$"),
        ("someone/broken", "is not JSON"),
        ("someone/list", "is not an object$"),
        ("someone/mamba", "^--model: someone/mamba: config.json: model_type: 'mamba' is not supported"),
        ("llama-2-70", "^--model: 'llama-2-70' is no folder, .*; did you mean llama-2-70b"),
        ("a/b/c", "^--model: 'a/b/c' is no folder"),
    ],
)
def test_what_is_no_model(name: str, told: str, hub: str) -> None:
    with pytest.raises(ValueError, match=told):
        subject(name)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="config.json: cannot be read: No such file or directory"):
        subject(str(tmp_path), "--draft")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": -1}))
    with pytest.raises(
        ValueError, match=r"^--draft: .*: config\.json: hidden_size: -1 is not a positive integer"
    ):
        subject(str(tmp_path), "--draft")


def test_offline_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ValueError, match="cannot be reached: .*; offline, name a folder with the model's config.json"
    ):
        subject("someone/model")
