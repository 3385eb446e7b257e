"""The tree against a model that keeps every block by its whole prefix, does everything the slow way, and agrees."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefixcache.tree import RadixNode, RadixTree

SIZE = 2
CAPS = (6, 3)
OWNERS = st.sampled_from([("", ""), ("a", ""), ("a", "s"), ("a", "t"), ("b", "")])
SALTS = st.sampled_from([b"", b"a"])
IDS = st.lists(st.integers(0, 1), max_size=7 * SIZE)

Prefix = tuple[bytes, tuple[int, ...]]


class TreeAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RadixTree(SIZE, caps=CAPS)
        self.owners: dict[Prefix, tuple[str, str]] = {}
        self.blocks: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.locked: list[tuple[RadixNode, list[Prefix]]] = []
        self.clock = 0
        self.next_block = 0

    def prefixes(self, salt: bytes, ids: list[int]) -> list[Prefix]:
        return [(salt, tuple(ids[:end])) for end in range(SIZE, len(ids) + 1, SIZE)]

    def known(self, salt: bytes, ids: list[int]) -> list[Prefix]:
        """The cached prefixes, shortest first; uses them."""
        self.clock += 1
        known = [prefix for prefix in self.prefixes(salt, ids) if prefix in self.blocks]
        self.used.update(dict.fromkeys(known, self.clock))
        return known

    def is_locked(self, prefix: Prefix) -> bool:
        return any(prefix in prefixes for _, prefixes in self.locked)

    def is_leaf(self, prefix: Prefix) -> bool:
        salt, ids = prefix
        return not any(
            other[0] == salt and len(other[1]) > len(ids) and other[1][: len(ids)] == ids
            for other in self.blocks
        )

    @rule(salt=SALTS, ids=IDS, lock=st.booleans())
    def match(self, salt: bytes, ids: list[int], lock: bool) -> None:
        match = self.tree.match(salt, ids)
        known = self.known(salt, ids)
        assert match.blocks == [self.blocks[prefix] for prefix in known]
        assert self.tree.prefix(match.node) == match.blocks
        assert self.tree.unlocked(match.node) == sum(not self.is_locked(prefix) for prefix in known)
        if lock:
            self.tree.lock(match.node)
            self.locked.append((match.node, known))

    @rule(salt=SALTS, ids=IDS, owners=OWNERS)
    def insert(self, salt: bytes, ids: list[int], owners: tuple[str, str]) -> None:
        prefixes = self.prefixes(salt, ids)
        offered = list(range(self.next_block, self.next_block + len(prefixes)))
        self.next_block += len(prefixes)
        insertion = self.tree.insert(salt, ids, offered, owners)
        held = len(self.known(salt, ids))
        self.blocks.update(zip(prefixes[held:], offered[held:], strict=True))
        self.owners.update(dict.fromkeys(prefixes[held:], owners))
        self.used.update(dict.fromkeys(prefixes, self.clock))
        assert insertion.duplicates == offered[:held]
        assert insertion.taken == offered[held:]
        assert insertion.blocks == [self.blocks[prefix] for prefix in prefixes]

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.locked) - 1))
        node, _ = self.locked.pop(index)
        self.tree.unlock(node)

    def excess(self, place: tuple[int, str]) -> int:
        level, name = place
        held = sum(self.owners[prefix][level] == name for prefix in self.blocks)
        return held - CAPS[level] if name else 0

    def standing(self, place: tuple[int, str]) -> tuple[int, int]:
        return place[0], self.excess(place)

    def places(self, prefix: Prefix) -> set[tuple[int, str]]:
        return set(enumerate(self.owners[prefix]))

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        """One by one: whoever is furthest beyond his cap has to give, where nobody is, who was used least recently."""
        for block in [block for _ in range(count) for block in self.tree.evict(1)]:
            (gone,) = (prefix for prefix, held in self.blocks.items() if held == block)
            assert self.is_leaf(gone) and not self.is_locked(gone)
            leaves = [prefix for prefix in self.blocks if self.is_leaf(prefix) and not self.is_locked(prefix)]
            givers = {place for leaf in leaves for place in self.places(leaf) if self.excess(place) > 0}
            furthest = max(map(self.standing, givers), default=None)
            beyond: list[tuple[int, str] | None] = [
                place for place in givers if self.standing(place) == furthest
            ]
            assert any(
                gone
                == min(
                    (leaf for leaf in leaves if place is None or place in self.places(leaf)),
                    key=self.used.__getitem__,
                )
                for place in beyond or [None]
            )
            del self.blocks[gone]

    @invariant()
    def agree(self) -> None:
        self.tree.check()
        assert self.tree.cached == len(self.blocks)
        assert self.tree.evictable == sum(not self.is_locked(prefix) for prefix in self.blocks)


TreeAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTreeAgainstModel = TreeAgainstModel.TestCase
