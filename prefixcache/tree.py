"""The radix tree: which blocks of the device already hold the keys and values of which prefixes.

A node stands for a run of whole blocks below its parent; its edge is the run's token ids, packed to bytes, so that
a long prefix is compared in one call. A first block decides which child a prompt follows. Below the root the salt
is part of that decision, so prompts under different salts share nothing at all.

Block ids are opaque here. The tree owns the blocks that it took, until `evict` gives them back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from prefixcache.owner import Owner
from prefixcache.tokens import WIDTH, pack


class RadixNode:
    """A run of blocks. A caller may hold it for `lock` and `unlock`; its fields are the tree's own business."""

    __slots__ = ("blocks", "children", "edge", "key", "locks", "owners", "parent", "used")

    def __init__(
        self,
        parent: "RadixNode | None",
        key: bytes,
        edge: bytes,
        blocks: list[int],
        owners: tuple[Owner, ...] = (),
    ) -> None:
        self.parent = parent  # None: the root, or no longer in the tree
        self.key = (
            key  # under which the parent has it: the first block's tokens, below the root after the salt
        )
        self.edge = edge  # packed token ids of all its blocks
        self.blocks = blocks
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0  # holders of this node and of all nodes below
        self.used = 0  # time of last use on the tree's clock, never before a child's
        self.owners = owners  # those whose count its blocks are in; the first one is everybody

    @property
    def gone(self) -> bool:
        return self.parent is None


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix. Valid until the tree changes, unless `node` is locked."""

    blocks: list[int]
    node: RadixNode


@dataclass(frozen=True, slots=True)
class Insertion:
    """What became of inserted blocks. The caller owns the duplicates again; `blocks` says what stands for them."""

    node: RadixNode
    blocks: list[int]  # the tree's, for the whole inserted prefix
    taken: list[int]  # new to the tree: the last ones of `blocks`
    duplicates: list[int]  # refused, since the tree has others with the same tokens


class RadixTree:
    """Block-granular prefix tree with reference-counted locks and least-recently-used eviction of leaves.

    Blocks may have owners, at several levels (a tenant, a session of his). As long as an owner has more blocks than
    the cap of his level, his are evicted before anybody else's.

    `match` and `insert` cost a few byte comparisons for each node they pass, `evict` O(log nodes) for each node that
    it visits; a use since the last eviction makes for at most one visit more.
    """

    def __init__(self, block_size: int, caps: Sequence[int] = ()) -> None:
        """`block_size` in tokens; `caps` in blocks, by level. Raises ValueError when `block_size` is not positive."""
        if block_size < 1:
            raise ValueError(f"block_size: {block_size} is not positive")
        self._block_size = block_size
        self._width = block_size * WIDTH  # bytes of a block's tokens
        self._root = RadixNode(None, b"", b"", [])
        self._clock = 0
        self._cached = 0
        self._evictable = 0
        self._caps = tuple(caps)
        self._everybody = Owner()
        self._owners: dict[tuple[int, str], Owner] = {}  # by level and name
        self._exceeding: dict[tuple[int, str], Owner] = {}  # those beyond their cap: never more than a few

    @property
    def cached(self) -> int:
        """Blocks in the tree."""
        return self._cached

    @property
    def evictable(self) -> int:
        """Blocks that `evict` could give back now: all that nobody has locked."""
        return self._evictable

    def match(self, salt: bytes, ids: Sequence[int]) -> Match:
        """The longest cached prefix of `ids` in whole blocks. Counts as a use; may split a node at its end."""
        node, blocks = self._descend(salt, pack(ids))
        return Match(blocks, node)

    def insert(
        self, salt: bytes, ids: Sequence[int], blocks: Sequence[int], owners: Sequence[str] = ()
    ) -> Insertion:
        """Offer `blocks`, which hold the first `len(blocks) * block_size` of `ids`. Counts as a use.

        `owners`: of what is taken, by level; an empty name is nobody's. Raises ValueError when the ids do not fill the
        blocks.
        """
        tokens = pack(ids[: len(blocks) * self._block_size])
        if len(tokens) != len(blocks) * self._width:
            raise ValueError(f"ids: {len(ids)} do not fill {len(blocks)} blocks of {self._block_size}")
        node, held = self._descend(salt, tokens)
        duplicates = [ours for ours, theirs in zip(blocks, held, strict=False) if ours != theirs]
        taken = list(blocks[len(held) :])
        if taken:
            node = self._append(node, salt, tokens[len(held) * self._width :], taken, owners)
        return Insertion(node, held + taken, taken, duplicates)

    def lock(self, node: RadixNode) -> None:
        """Keep the prefix that ends with `node` from eviction, until as many calls of `unlock`.

        Raises ValueError for a node that is no longer in the tree.
        """
        for each in self._path(node):
            if each.locks == 0:
                self._evictable -= len(each.blocks)
            each.locks += 1

    def unlock(self, node: RadixNode) -> None:
        """Raises ValueError for a node that is not locked."""
        for each in self._path(node):
            if each.locks == 0:
                raise ValueError("unlock: the node is not locked")
            each.locks -= 1
            if each.locks == 0:
                self._evictable += len(each.blocks)
                self._enqueue(each)

    def unlocked(self, node: RadixNode) -> int:
        """How many blocks `lock(node)` would take out of `evictable`."""
        return sum(len(each.blocks) for each in self._path(node) if each.locks == 0)

    def prefix(self, node: RadixNode) -> list[int]:
        """The blocks from the root to the end of `node`."""
        return [block for each in reversed(self._path(node)) for block in each.blocks]

    def evict(self, count: int) -> list[int]:
        """Give back `count` blocks, or all that are evictable if those are fewer.

        Goes by leaves, the least recently used first, and within a leaf from its end, so that what stays is a prefix;
        but first those of owners beyond their cap, as far as they are.
        """
        freed: list[int] = []
        while len(freed) < count and (owner := self._evicted_first()).queues:
            used, leaf = owner.pop()
            node = cast(RadixNode, leaf)  # nothing else is pushed
            if used == node.used and not node.locks and not node.children:
                most = count - len(freed)
                freed += self._cut(node, min(most, owner.excess) if owner.excess else most)
            self._enqueue(node)
        return freed

    def _evicted_first(self) -> Owner:
        """Of those beyond their cap who have something to give, at the last level, the furthest; else everybody."""
        exceeding = [owner for owner in self._exceeding.values() if owner.queues]
        return max(exceeding, key=lambda owner: (owner.place[0], owner.excess), default=self._everybody)

    def held(self, level: int, owner: str) -> int:
        """Blocks of one owner, locked ones too."""
        known = self._owners.get((level, owner))
        return 0 if known is None else known.held

    def clear(self) -> list[int]:
        """Give back everything that is not locked."""
        return self.evict(self._evictable)

    def _descend(self, salt: bytes, tokens: bytes) -> tuple[RadixNode, list[int]]:
        """Follow `tokens` as far as whole blocks are known; the node ends just there, split off if need be."""
        self._clock += 1
        node, blocks, at = self._root, list[int](), 0
        end = len(tokens) - len(tokens) % self._width
        key = salt + tokens[: self._width]
        while at < end and (child := node.children.get(key)) is not None:
            if not tokens.startswith(child.edge, at):
                child = self._split(child, self._shared(child.edge, tokens, at))
            child.used = self._clock
            blocks += child.blocks
            at += len(child.edge)
            key = tokens[at : at + self._width]
            node = child
        return node, blocks

    def _shared(self, edge: bytes, tokens: bytes, at: int) -> int:
        """How many blocks `edge` and `tokens[at:]` have in common, given that the first is and not all are."""
        width = self._width
        low, high = 1, min(len(edge), len(tokens) - at) // width + 1
        while high - low > 1:
            middle = (low + high) // 2
            if edge[low * width : middle * width] == tokens[at + low * width : at + middle * width]:
                low = middle
            else:
                high = middle
        return low

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Put the first `at` blocks into a new node above. `node` stays the lower one: its holders hold to the end."""
        parent, cut = node.parent, at * self._width
        assert parent is not None
        upper = RadixNode(parent, node.key, node.edge[:cut], node.blocks[:at], node.owners)
        upper.locks, upper.used = node.locks, node.used
        parent.children[node.key] = upper
        node.edge, node.blocks = node.edge[cut:], node.blocks[at:]
        node.parent, node.key = upper, node.edge[: self._width]
        upper.children[node.key] = node
        return upper

    def _append(
        self, parent: RadixNode, salt: bytes, edge: bytes, blocks: list[int], names: Sequence[str]
    ) -> RadixNode:
        first = edge[: self._width]
        key = salt + first if parent is self._root else first
        places = [(level, name) for level, name in enumerate(names[: len(self._caps)]) if name]
        owners = [self._owners.setdefault(place, Owner(*place, self._caps[place[0]])) for place in places]
        node = RadixNode(parent, key, edge, blocks, (self._everybody, *owners))
        node.used = self._clock
        parent.children[key] = node
        self._count(node, len(blocks))
        self._enqueue(node)
        return node

    def _count(self, node: RadixNode, change: int) -> None:
        """Blocks came to an unlocked node, or went."""
        self._cached += change
        self._evictable += change
        for owner in node.owners:
            owner.held += change
            if owner.excess:
                self._exceeding[owner.place] = owner
            else:
                self._exceeding.pop(owner.place, None)
            if not owner.held:
                self._owners.pop(owner.place, None)

    def _cut(self, leaf: RadixNode, count: int) -> list[int]:
        """Take up to `count` blocks from the end of a leaf, and the leaf away when nothing is left of it."""
        keep = max(0, len(leaf.blocks) - count)
        freed = leaf.blocks[keep:]
        leaf.blocks, leaf.edge = leaf.blocks[:keep], leaf.edge[: keep * self._width]
        self._count(leaf, -len(freed))
        if not keep:
            parent = leaf.parent
            assert parent is not None
            del parent.children[leaf.key]
            leaf.parent = None
            for owner in leaf.owners:
                owner.drop(leaf)
            self._enqueue(parent)
        return freed

    def _enqueue(self, node: RadixNode) -> None:
        """Make a node known to `evict`, if it is a leaf that nobody has locked."""
        if not (node.locks or node.children or node.gone):
            for owner in node.owners:
                owner.push(node)

    def _path(self, node: RadixNode) -> list[RadixNode]:
        """The nodes from `node` up to the root, which is not among them."""
        path = []
        while node is not self._root:
            if node.parent is None:
                raise ValueError("the node is no longer in the tree")
            path.append(node)
            node = node.parent
        return path

    def _nodes(self) -> Iterator[RadixNode]:
        """All but the root, in no particular order."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Recompute every invariant from scratch. Raises AssertionError where one does not hold."""
        nodes = list(self._nodes())
        for node in nodes:
            self._check_node(node)
        blocks = [block for node in nodes for block in node.blocks]
        assert len(blocks) == len(set(blocks)), "a block is in the tree twice"
        assert self._cached == len(blocks)
        assert self._evictable == sum(len(node.blocks) for node in nodes if not node.locks)
        for owner in (self._everybody, *self._owners.values()):
            owner.check()
            assert owner.held == sum(len(node.blocks) for node in nodes if owner in node.owners)
        for node in nodes:
            assert node.owners[0] is self._everybody
            assert all(self._owners[owner.place] is owner for owner in node.owners[1:])
        assert self._exceeding == {place: owner for place, owner in self._owners.items() if owner.excess}

    def _check_node(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None and parent.children[node.key] is node
        assert node.blocks and len(node.edge) == len(node.blocks) * self._width
        first = node.edge[: self._width]
        assert node.key.endswith(first) if parent is self._root else node.key == first
        assert node.locks >= sum(child.locks for child in node.children.values())
        assert parent is self._root or parent.used >= node.used
        queued = all(node in owner for owner in node.owners)
        assert node.locks or node.children or queued, "a leaf that could be evicted is not queued"
