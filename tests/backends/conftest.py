"""Fixtures for tests of backends: engine processes without a model, see `fake_engine.py`."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.wire import EngineConfig


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    """What tests draw at random, in whatever order they run. Those that do without torch go on without."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def fake_command() -> list[str]:
    """Starts a fake engine when followed by a config file."""
    return [sys.executable, str(Path(__file__).parent / "fake_engine.py")]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A private folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        yield Path(folder)


@pytest.fixture
def engine_config(runtime: Path) -> Callable[..., EngineConfig]:
    """Configs with sockets in the runtime folder: `engine_config("7b/0", model="quick")`."""

    def make(name: str = "e/0", model: str = "fake", **fields: object) -> EngineConfig:
        stem = runtime / name.replace("/", "-")
        defaults = {
            "socket": f"{stem}.socket",
            "vocabulary": str(runtime / "vocabulary"),
        }
        return EngineConfig(name=name, model=model, **{**defaults, **fields})  # type: ignore[arg-type]

    (runtime / "vocabulary").touch()

    return make
