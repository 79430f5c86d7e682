"""A process that writes pages until it is killed or the device is full, and says after each group what it has written."""

from __future__ import annotations

import sys
from pathlib import Path

from ssd_pages import KIB, page, read

from kvtier.ssd.segments import SsdFull, SsdSegments
from kvtier.store.page import SsdPlace

PAGE_BYTES = 48 * KIB
GROUP_PAGES = 8
SEGMENT_BYTES = 1024 * KIB


def write_on(directory: Path) -> None:
    """Until killed."""
    segments = SsdSegments(directory, SEGMENT_BYTES, 1000)
    number = 0
    while True:
        segments.append([page(number + each, PAGE_BYTES) for each in range(GROUP_PAGES)])
        number += GROUP_PAGES
        print(number, flush=True)


def fill_device(directory: Path) -> None:
    """Until full; then make room and go on, and read all that is left."""
    segments = SsdSegments(directory, SEGMENT_BYTES, 1000)
    places: list[SsdPlace] = []
    try:
        while True:
            places += segments.append([page(len(places), PAGE_BYTES)])
    except SsdFull as error:
        print(f"full after {len(places)}: {error}", flush=True)
    segments.delete(1)
    (later,) = segments.append([page(9999, PAGE_BYTES)])
    intact = sum(
        read(segments, place, PAGE_BYTES) == bytes(page(number, PAGE_BYTES).data[:PAGE_BYTES])
        for number, place in enumerate(places)
        if place.segment != 1
    )
    lost = sum(place.segment == 1 for place in places)
    print(f"intact {intact} of {len(places) - lost}, then segment {later.segment}", flush=True)
    segments.close()
    again = SsdSegments(directory, SEGMENT_BYTES, 1000)
    print(f"recovered {len(again.recovered.pages)}", flush=True)


if __name__ == "__main__":
    {"write": write_on, "fill": fill_device}[sys.argv[1]](Path(sys.argv[2]))
