"""What has happened at one node's store since it started. Plain numbers; whoever exports them adds names."""

from __future__ import annotations

import msgspec


class StoreCounters(msgspec.Struct):
    stored: int = 0
    already_stored: int = 0  # puts that cost nothing
    dram_hits: int = 0
    ssd_hits: int = 0  # found on SSD alone, to be read into DRAM
    misses: int = 0
    busy: int = 0
    moved: int = 0
    no_room: int = 0  # puts and promotions refused because everything was held
    evicted: int = 0  # from DRAM
    lost: int = 0  # of these, kept nowhere else on this node
    demoted: int = 0
    demotions_failed: int = 0
    demotions_skipped: int = 0  # queue full or device full
    promoted: int = 0
    promotions_failed: int = 0
    ssd_forgotten: int = 0  # left with a reclaimed segment
    ssd_kept: int = 0  # moved out of a reclaimed segment
    recovered: int = 0
    recovered_too_large: int = 0  # found at start, but longer than a slab is now: not taken in
    corrupt_dram: int = 0
    corrupt_ssd: int = 0
    writes_expired: int = 0
    leases_expired: int = 0
    pins_expired: int = 0
    pins_refused: int = 0
