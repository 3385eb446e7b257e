"""The model that a plan is for: its shape, wherever its config.json is."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from backends.catalogue import CATALOGUE, HUB
from backends.models.config import ConfigError, DecoderConfig
from backends.models.registry import decoder_config
from gateway.planning.published import PUBLISHED, published
from gateway.strictyaml import nearest

TIMEOUT = httpx.Timeout(30, connect=5)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Subject:
    """`source`: where the shape was read, in words."""

    name: str
    source: str
    kind: str  # `model_type`
    config: DecoderConfig


def subject(name: str, option: str = "--model") -> Subject:
    """A folder with a config.json, a model of the catalogue, a well-known one, or one of the Hugging Face Hub.

    Raises ValueError, which names the option and what is wrong with the model.
    """
    try:
        source, raw = _found(name)
        # A plan is about the shape, and counts each format by itself, whatever the checkpoint is packed in.
        config = {key: value for key, value in raw.items() if key != "quantization_config"}
        return Subject(name, source, str(config.get("model_type")), decoder_config(config))
    except ConfigError as error:
        raise ValueError(f"{option}: {name}: config.json: {error}") from error
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def _found(name: str) -> tuple[str, Mapping[str, Any]]:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return f"{folder / 'config.json'}", _read(folder / "config.json")
    if name in CATALOGUE and CATALOGUE[name].present:
        return "the catalogue", _read(CATALOGUE[name].folder / "config.json")
    known = published(name)
    if known is not None:
        return "the table of well-known shapes", known
    if _REPOSITORY.fullmatch(name):
        return _fetched(name)
    hint = nearest(name, [*CATALOGUE, *PUBLISHED])
    raise ValueError(
        f"{name!r} is no folder, no OWNER/NAME of the Hub, and not in the catalogue or among the well-known; {hint}"
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return _parsed(path.read_bytes(), str(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error


def _fetched(repository: str) -> tuple[str, Mapping[str, Any]]:
    """From the Hub, or the server that HF_ENDPOINT names; HF_TOKEN opens repositories that ask for consent."""
    url = f"{os.environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{repository}/resolve/main/config.json"
    token = os.environ.get("HF_TOKEN")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(
            f"{url}: cannot be reached: {error or type(error).__name__}; "
            "offline, name a folder with the model's config.json"
        ) from error
    if answer.status_code in (401, 403):
        raise ValueError(
            f"{url}: answers {answer.status_code}: there is no such model, or it asks for consent; HF_TOKEN opens it"
        )
    if answer.status_code != 200:
        raise ValueError(f"{url}: answers {answer.status_code}")
    return url, _parsed(answer.content, url)


def _parsed(content: bytes, where: str) -> Mapping[str, Any]:
    try:
        config = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: is not JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise ValueError(f"{where}: is not an object")
    return config
