"""The list of messages as a template sees it while it is watched: it says which messages are read and when.

Messages may be lazy: one that no template code touches is never parsed. Only what a template can do with a list is here;
anything else fails, and the caller renders plainly instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

JsonObject = dict[str, Any]
Message = Mapping[str, Any]


class Reader(Protocol):
    """Told of every look at the messages that goes beyond the one that the loop is at."""

    def read(self, index: int) -> None:
        """Message `index` was read."""

    def read_end(self) -> None:
        """Something was read that changes when messages are added."""


class LazyMessage(Mapping[str, Any]):
    """A message that is shaped when it is first looked into, beyond its role if that is known."""

    __slots__ = ("_index", "_load", "_role", "_value")

    def __init__(self, index: int, role: str | None, load: Callable[[int], JsonObject]) -> None:
        self._index = index
        self._role = role
        self._load = load
        self._value: JsonObject | None = None

    def __getitem__(self, key: str) -> Any:
        if key == "role" and self._role is not None:
            return self._role
        return self._get()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._get())

    def __len__(self) -> int:
        return len(self._get())

    def _get(self) -> JsonObject:
        value = self._value
        if value is None:
            value = self._value = self._load(self._index)
        return value


class MessageView(Sequence[Message]):
    """`base`: messages that were sliced off the front, so that positions can be told in the whole conversation."""

    __slots__ = ("_items", "_reader", "base")

    def __init__(self, items: Sequence[Message], reader: Reader, base: int = 0) -> None:
        """`items`: the whole conversation, whatever `base` is."""
        self._items = items
        self._reader = reader
        self.base = base

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return self._slice(index)
        if index < 0:
            self._reader.read_end()
            index += self.size
        position = self.base + index
        if not self.base <= position < len(self._items):
            self._reader.read_end()
            raise IndexError(index)
        self._reader.read(position)
        return self._items[position]

    def __iter__(self) -> Iterator[Message]:
        self._reader.read_end()
        return iter(self.window(self.base))

    def __len__(self) -> int:
        self._reader.read_end()
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __eq__(self, other: object) -> bool:
        raise TypeError("a template that compares the list of messages is rendered plainly")

    __hash__ = None  # type: ignore[assignment]  # as a list

    @property
    def size(self) -> int:
        """Its length, unwatched."""
        return len(self._items) - self.base

    def window(self, first: int) -> Sequence[Message]:
        """What the main loop goes over, from message `first` of the conversation on. Unwatched: it is the message at hand."""
        return self._items[first:]

    def _slice(self, index: slice) -> Sequence[Message]:
        start, _, step = index.indices(self.size)
        if step == 1 and index.stop is None and (index.start or 0) >= 0:
            return MessageView(self._items, self._reader, self.base + start)
        self._reader.read_end()
        return self.window(self.base)[index]


class LastUser(Protocol):
    """Where the last message of the user is."""

    def __call__(self, below: int) -> int:
        """The last one with an index below this one; -1 = none."""


class LazyMessages(Sequence[Message]):
    """Messages of which those from number `first` on are at hand; the others are loaded when looked into. `role`: of a message,
    where it can be told without loading it."""

    __slots__ = ("_first", "_load", "_ready", "_role")

    def __init__(
        self,
        first: int,
        ready: Sequence[JsonObject],
        role: Callable[[int], str | None],
        load: Callable[[int], JsonObject],
    ) -> None:
        self._first = first
        self._ready = ready
        self._role = role
        self._load = load

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if index >= self._first:
            return self._ready[index - self._first]
        return LazyMessage(index, self._role(index), self._load)

    def __len__(self) -> int:
        return self._first + len(self._ready)
