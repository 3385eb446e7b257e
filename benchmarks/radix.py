"""The radix tree alone, against SGLang's, on one trace of conversations.

Each turn of a conversation is a sequence that begins with the turns before it; a conversation begins with one of a
hundred system prompts. Both trees keep pages of 16 tokens, and get the ids in the form that their engines keep.
"""

import gc
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from benchmarks.radix_peer import Peer
from benchmarks.report import Row, paired
from prefixcache.tree import RadixTree

PAGE, LONGEST = 16, 8000  # tokens
SEQUENCES, PORTION = 10_000, 250  # sequences of a pair: each tree works them off in one go
FREED = 4096  # tokens given back at a time, about a long prompt
Pairs = list[tuple[float, float]]


def trace(seed: int) -> Iterator["array[int]"]:
    """Sequences without end, up to LONGEST."""
    draw = random.Random(seed)
    prompts = [_tokens(draw, 100, 2000) for _ in range(100)]
    talks: list[array[int]] = []
    while True:
        if not talks or draw.random() < 0.3:
            talks.append(draw.choice(prompts))
        place = draw.randrange(len(talks))
        talks[place] = (talks[place] + _tokens(draw, 16, 1500))[:LONGEST]
        yield talks[place]
        if len(talks[place]) == LONGEST:
            del talks[place]


def _tokens(draw: random.Random, least: int, most: int) -> "array[int]":
    return array("I", draw.choices(range(49152), k=draw.randint(least, most)))


class Portion:
    """Some sequences of the trace in both forms, with the places that they are offered with."""

    def __init__(self, sequences: list["array[int]"], first: int) -> None:
        self.first = first
        self.ours: list[tuple[array[int], list[int]]] = []
        self.theirs: list[tuple[array[int], torch.Tensor]] = []
        for ids in sequences:
            blocks = list(range(self.first, self.first + len(ids) // PAGE))
            self.first += len(blocks)
            whole = ids[: len(blocks) * PAGE]
            self.ours.append((whole, blocks))
            self.theirs.append((array("q", whole), torch.arange(len(whole)) + blocks[0] * PAGE))


def rows(sequences: int) -> list[Row]:
    """Cases `tree match`, `tree insert` and `tree evict`. Raises FileNotFoundError where the peer is missing."""
    tree, peer, stream = RadixTree(PAGE), Peer(PAGE), trace(0)
    match, insert, first = Pairs(), Pairs(), 0
    gc.disable()  # or else each pays for the objects of the other
    for _ in range(sequences // PORTION):
        portion = Portion(list(islice(stream, PORTION)), first)
        first = portion.first
        _agree(tree, peer, portion)
        ours, theirs = [(b"", ids) for ids, _ in portion.ours], [(ids,) for ids, _ in portion.theirs]
        match.append((_seconds(tree.match, ours), _seconds(peer.match, theirs)))
        offers = [(b"", ids, blocks) for ids, blocks in portion.ours]
        insert.append((_seconds(tree.insert, offers), _seconds(peer.insert, portion.theirs)))
    evict = [
        (_seconds(tree.evict, [(FREED // PAGE,)]), _seconds(peer.evict, [(FREED,)]))
        for _ in range(sequences // PORTION)
    ]
    gc.enable()
    return [_row("match", match, PORTION), _row("insert", insert, PORTION), _row("evict", evict, 1)]


def _agree(tree: RadixTree, peer: Peer, portion: Portion) -> None:
    """Both find the same prefix of the first one."""
    ours, theirs = tree.match(b"", portion.ours[0][0]), peer.match(portion.theirs[0][0])
    if len(ours.blocks) * PAGE != len(theirs):
        raise RuntimeError(f"the trees differ: {len(ours.blocks) * PAGE} and {len(theirs)} tokens")


def _seconds(call: Callable[..., object], arguments: Sequence[tuple[Any, ...]]) -> float:
    started = time.perf_counter()
    for each in arguments:
        call(*each)
    return time.perf_counter() - started


def _row(case: str, pairs: Pairs, calls: int) -> Row:
    scaled = [(1e6 * ours / calls, 1e6 * theirs / calls) for ours, theirs in pairs]
    return paired(
        f"tree {case}", scaled, peer_name="sglang RadixCache", unit="µs a call", higher_is_better=False
    )
