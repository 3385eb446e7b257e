"""How ranks find each other; what they say to each other is in `models/ranks`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from backends.engine.parallel import group
from backends.layers.shard import Shard


@pytest.mark.parametrize(
    ("device", "backend", "bound"), [("cpu", "gloo", None), ("cuda:1", "nccl", torch.device("cuda:1"))]
)
def test_each_rank_of_gpus_is_bound_to_its_own(
    device: str, backend: str, bound: torch.device | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rank of NCCL that is bound to no GPU guesses one, and connects with the first word that it says."""
    said: dict[str, Any] = {}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda name, **how: said.update(how, name=name)
    )
    group.join_group(Shard(1, 2), tmp_path / "store", torch.device(device))
    assert (said["name"], said["device_id"], said["timeout"]) == (backend, bound, group.PATIENCE)
    assert (said["rank"], said["world_size"], said["init_method"]) == (1, 2, f"file://{tmp_path}/store")
