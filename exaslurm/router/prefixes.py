"""Who was sent which beginnings of prompts: an index of block hashes in bounded memory. Pure.

Of a prompt only some blocks are kept: where it leaves what is common, then at growing distances,
and its end. That tells to within a factor of two how much of another prompt is known, in a few
entries; a conversation that goes on is found at the end of its last turn.

A beginning after which prompts were seen to go on in different ways is common, as a system prompt
is. The block after the longest common beginning tells prompts apart; it is found as prompts come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar


class Owner(Protocol):
    """A replica with a cache."""

    @property
    def target(self) -> object | None:
        """None: it is gone."""


OwnerT = TypeVar("OwnerT", bound=Owner)

CAPACITY = 65_536
"""Entries of an index. An entry takes 160 bytes, 250 if several replicas share it: 16 MB at most.
A prompt takes 2 to 8 entries."""

_COMMON_AFTER = 2  # continuations that differed
_MAX_OWNERS = 8


class Shared(Generic[OwnerT]):
    """A beginning that several owners have, or after which prompts differ.

    ``owners`` None: more than are worth naming, as good as everyone.
    """

    __slots__ = ("differed", "owners")

    def __init__(self, owner: OwnerT) -> None:
        self.owners: tuple[OwnerT, ...] | None = (owner,)
        self.differed = 0

    def add(self, owner: OwnerT) -> None:
        if self.owners is None or owner in self.owners:
            return
        left = [other for other in self.owners if other.target is not None]
        self.owners = (*left, owner) if len(left) < _MAX_OWNERS else None


Found: TypeAlias = tuple[Sequence[int], int, "OwnerT | Shared[OwnerT] | None", int]
"""Keys of a prompt; the number of them up to the last one that has an entry; this entry; the number
of keys after which prompts differ."""


class Prefixes(Generic[OwnerT]):
    """``capacity``: entries, about."""

    __slots__ = ("_old", "_young", "capacity")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        # Two generations in place of a linked list: what is used moves to the young one, and
        # when that is full the old one is dropped whole.
        self._young: dict[int, OwnerT | Shared[OwnerT]] = {}
        self._old: dict[int, OwnerT | Shared[OwnerT]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def age(self) -> None:
        """Forget what was not used since the last time."""
        self._old, self._young = self._young, {}

    def last(self, key: int) -> OwnerT | Shared[OwnerT] | None:
        """What is known of the prompt whose last key this is, if it was used of late."""
        return self._young.get(key)

    def find(self, keys: Sequence[int]) -> Found[OwnerT]:
        young, old = self._young.get, self._old.get
        known, deepest = 0, None
        for index in range(len(keys) - 1, -1, -1):
            key = keys[index]
            entry = young(key) or old(key)
            if entry is not None:
                if deepest is None:
                    known, deepest = index + 1, entry
                if isinstance(entry, Shared) and entry.differed >= _COMMON_AFTER:
                    return keys, known, deepest, index + 1
        return keys, known, deepest, 0

    def record(self, found: Found[OwnerT], owner: OwnerT) -> None:
        """The prompt of ``found`` goes to ``owner``."""
        if len(self._young) * 2 >= self.capacity:
            self.age()
        keys, known, entry, common = found
        count = len(keys)
        if entry is not None and known < count:
            self._goes_on(keys[known - 1], known - common, entry)
        young = self._young
        if common:
            self._own(keys[common - 1], owner)
        index, step = common, 1
        while index < count - 1:
            if young.get(keys[index]) is not owner:
                self._own(keys[index], owner)
            index, step = index + step, step * 2
        if young.get(keys[-1]) is not owner:
            self._own(keys[-1], owner)

    def _goes_on(self, key: int, beyond: int, entry: OwnerT | Shared[OwnerT]) -> None:
        """A prompt is known up to ``key`` and no further, ``beyond`` blocks past the common
        beginning."""
        if isinstance(entry, Shared):
            entry.differed += 1
        elif beyond & (beyond - 1):  # The end of a conversation's last turn: it moved on.
            self._young.pop(key, None)
            self._old.pop(key, None)
        else:
            shared = Shared(entry)
            shared.differed = 1
            self._young[key] = shared

    def _own(self, key: int, owner: OwnerT) -> None:
        young = self._young
        entry = young.get(key) or self._old.get(key)
        if entry is None or (not isinstance(entry, Shared) and entry.target is None):
            entry = owner
        elif entry is not owner:
            if not isinstance(entry, Shared):
                entry = Shared(entry)
            entry.add(owner)
        young[key] = entry
