"""What a policy may look at of one page."""

from __future__ import annotations

from typing import Protocol

from kvtier.page.kind import PageKind


class PageUse(Protocol):
    @property
    def kind(self) -> PageKind: ...
    @property
    def depth(self) -> int:
        """Pages before this one in its prompt."""
        ...

    @property
    def tokens(self) -> int: ...
    @property
    def length(self) -> int:
        """Bytes."""
        ...

    @property
    def hits(self) -> int:
        """Reads since it was stored."""
        ...

    @property
    def heat(self) -> float:
        """log2 of decayed hits, referred to time zero (see `kvtier.store.heat`)."""
        ...

    @property
    def last_ms(self) -> float:
        """Stored, read or put once more."""
        ...
