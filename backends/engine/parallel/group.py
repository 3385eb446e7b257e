"""The ranks of one engine over torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from backends.layers.shard import Shard

# For the slowest rank to load its part. A rank that hangs is noticed sooner, by whoever watches the engine's steps.
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Group:
    """As `layers.parallel.Ranks`. A method that another rank does not call too waits, then raises RuntimeError."""

    shard: Shard

    def add(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def join(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.shard.ranks)]
        dist.all_gather(parts, x)
        return torch.cat(parts, 1)

    def join_on_first(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        if self.shard.rank:
            dist.gather(x)
            return x[:, :0]
        parts = [torch.empty_like(x) for _ in range(self.shard.ranks)]
        dist.gather(x, parts)
        return torch.cat(parts, 1)


def join_group(shard: Shard, store: Path, device: torch.device) -> Group:
    """Returns when all ranks have called it with the same new `store`, a file through which they find each other."""
    # Nobody beyond this machine has to reach them, unless somebody says so.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        init_method=f"file://{store}",
        rank=shard.rank,
        world_size=shard.ranks,
        timeout=PATIENCE,
        device_id=device if device.type == "cuda" else None,  # so that they connect now, or fail now
    )
    return Group(shard)


def leave_group() -> None:
    """The last thing that a rank does."""
    dist.destroy_process_group()
