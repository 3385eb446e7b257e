"""Tests of several ranks, of which their own process is the first: `test_ranks.py` runs them in one of their own."""

import os
from collections.abc import Iterator

import pytest

from backends.engine.parallel.leader import Workers
from tests.backends.models.packed.conftest import to_grouped, write_packed

__all__ = ["to_grouped", "workers", "write_packed"]

collect_ignore_glob = [] if os.environ.get("HEADRACE_TEST_RANKS") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", params=[2, 3], ids=["two ranks", "three ranks"])
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """All tests share them: `workers.load(config)`."""
    losses: list[str] = []
    ranks = Workers(request.param, tmp_path_factory.mktemp("ranks") / "store", losses.append)
    yield ranks
    ranks.close()
    assert not losses
