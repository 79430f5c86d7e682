"""What an answer to `Acquire` leases, believed only where its columns fit the question and one another.

A status that is not what was said would give every page behind it its neighbour's bytes, whose checksum is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtier.page.checksum import CHECKSUM_BYTES
from kvtier.page.kind import PageKind
from kvtier.page.status import Status
from kvtier.wire.messages import Acquired, MessageError

_STATUSES = bytes((Status.OK, Status.MISS, Status.BUSY, Status.MOVED, Status.CORRUPT))
_KINDS = bytes(PageKind)


def leased_pages(acquired: Acquired, asked: int) -> Sequence[int]:
    """Which of the asked pages are leased. Raises `MessageError`."""
    if len(acquired.statuses) != asked:
        raise MessageError(f"an answer about {len(acquired.statuses)} pages to a question about {asked}")
    found = numbers_ok(acquired.statuses)
    fields = (acquired.offsets, acquired.lengths, acquired.generations, acquired.kinds, acquired.depths)
    if {*map(len, fields)} != {len(found)} or len(acquired.checksums) != len(found) * CHECKSUM_BYTES:
        raise MessageError(f"an answer whose columns are not of the {len(found)} pages that it calls leased")
    if bool(acquired.lease) != bool(found):
        raise MessageError(f"lease {acquired.lease} for {len(found)} pages")
    if acquired.statuses.translate(None, _STATUSES) or acquired.kinds.translate(None, _KINDS):
        raise MessageError("an answer with a status or a kind of page that there is not")
    return found


def numbers_ok(statuses: bytes) -> Sequence[int]:
    if not any(statuses):  # all OK, as they mostly are
        return range(len(statuses))
    return [number for number, status in enumerate(statuses) if status == Status.OK]
