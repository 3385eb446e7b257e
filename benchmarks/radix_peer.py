"""SGLang's RadixCache, from its one published file, with stand-ins for what that file imports.

The whole package wants another torch. `make bench-peers` unpacks one release of it into `.bench/sglang`; of that,
`radix_cache.py` and the policy of eviction in `evict_policy.py` run here, unchanged.
"""

import importlib.util
import sys
from array import array
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

FOLDER = Path(__file__).parent.parent / ".bench" / "sglang" / "sglang" / "srt" / "mem_cache"
PACKAGE = "sglang.srt.mem_cache"


class _Fields(SimpleNamespace):
    """Of the records that go in and out of the cache; what is not given is None."""

    def __getattr__(self, name: str) -> None:
        return None


class _Silent:
    """Records nothing, as with events turned off."""

    def __init__(self, **_: Any) -> None: ...

    def record_all_cleared(self) -> None: ...

    def record_store(self, node: Any) -> None: ...

    def record_remove(self, node: Any) -> None: ...


class _Allocator:
    """Takes freed indices, and does nothing with them."""

    device = "cpu"

    def free_segment(self, indices: Any, start_pos: int) -> None: ...


class Peer:
    """The cache with pages of `page_size` tokens. Raises FileNotFoundError where it has not been fetched."""

    def __init__(self, page_size: int) -> None:
        self._source = _load()
        parameters = _Fields(
            disable=False,
            token_to_kv_pool_allocator=_Allocator(),
            page_size=page_size,
            is_eagle=False,
            eviction_policy="lru",
            enable_kv_cache_events=False,
            enable_metrics=False,
        )
        self._cache = self._source.RadixCache(parameters)

    def match(self, tokens: "array[int]") -> torch.Tensor:
        """The cached indices of the longest cached prefix, as its scheduler asks for them."""
        key = self._source.RadixKey(tokens)
        node = self._cache.match_prefix(_Fields(key=key)).last_device_node
        indices: torch.Tensor = self._cache.path_device_indices(node)
        return indices

    def insert(self, tokens: "array[int]", indices: torch.Tensor) -> int:
        """How many of the tokens were there before."""
        key = self._source.RadixKey(tokens)
        result = self._cache.insert(_Fields(key=key, value=indices, priority=0, inserted_len=0))
        before: int = result.prefix_len
        return before

    def evict(self, tokens: int) -> int:
        evicted: int = self._cache.evict(_Fields(num_tokens=tokens)).num_tokens_evicted
        return evicted


def _load() -> ModuleType:
    if not (FOLDER / "radix_cache.py").exists():
        raise FileNotFoundError("make bench-peers fetches sglang's radix_cache.py")
    for name, members in _stand_ins().items():
        module = sys.modules.setdefault(name, ModuleType(name))
        vars(module).update(members)
    policy = _execute("evict_policy")
    vars(sys.modules[f"{PACKAGE}.utils"])["get_eviction_strategy"] = lambda *_: policy.LRUStrategy()
    return _execute("radix_cache")


def _execute(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _stand_ins() -> dict[str, dict[str, Any]]:
    packages = ("sglang", "sglang.srt", PACKAGE, "sglang.srt.utils")
    records = (
        "DecLockRefParams DecLockRefResult EvictParams EvictResult IncLockRefResult InsertParams InsertResult "
        "MatchPrefixParams MatchResult"
    ).split()
    without_metrics = {"update_eviction_metrics": lambda *_: None}
    return {
        **{name: {"__path__": []} for name in packages},
        f"{PACKAGE}.cache_init_params": {"CacheInitParams": _Fields},
        f"{PACKAGE}.base_prefix_cache": {
            "BasePrefixCache": type("BasePrefixCache", (), without_metrics),
            **dict.fromkeys(records, _Fields),
        },
        f"{PACKAGE}.events": {"KVCacheEventRecorder": _Silent, "LoRANameTable": dict},
        f"{PACKAGE}.utils": {"split_node_hash_value": lambda hashes, *_: (None, None)},
        "sglang.srt.utils.common": {"ceil_align": lambda value, page: -(-value // page) * page},
    }
