"""Segment files on a real file system: written, read, recovered, full, deleted under a reader, and corrupted at random."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from ssd_pages import KIB, OTHER_SPACE, SPACE, content, digest, page, read

from kvtier.page.checksum import page_checksum
from kvtier.ssd.layout import BLOCK_BYTES
from kvtier.ssd.segments import SsdFull, SsdInUse, SsdSegments
from kvtier.store.page import SsdPlace

SEGMENT_BYTES = 128 * KIB


def opened(directory: Path, max_segments: int = 8) -> SsdSegments:
    return SsdSegments(directory, SEGMENT_BYTES, max_segments)


def test_pages_come_back_as_they_were_written(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    lengths = [1, 4096, 5000, 16_384, 9999]
    places = segments.append([page(number, length) for number, length in enumerate(lengths)])
    for number, (length, place) in enumerate(zip(lengths, places, strict=True)):
        assert read(segments, place, length) == content(number, length)
    assert read(segments, SsdPlace(99, 4096), 4096) is None
    assert read(segments, SsdPlace(places[0].segment, SEGMENT_BYTES + BLOCK_BYTES), 4096) is None
    segments.close()


def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    places = segments.append([page(number, 16_384) for number in range(20)])
    assert [place.segment for place in places] == [1] * 7 + [2] * 7 + [3] * 6
    assert read(segments, places[7], 16_384) == content(7, 16_384)
    assert os.stat(tmp_path / "000000000001.lbkv").st_size < SEGMENT_BYTES  # sealed: what was not used is given back
    segments.close()


def test_a_start_finds_everything_that_was_written(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    written = [page(number, 5000, OTHER_SPACE if number % 3 else SPACE) for number in range(40)]
    places = [place for each in written for place in segments.append([each])]
    segments.close()
    again = opened(tmp_path)
    found = again.recovered.pages
    assert [(each.space, each.record.digest) for each in found] == [(each.space, each.digest) for each in written]
    assert [SsdPlace(each.segment, each.record.offset) for each in found] == places
    assert all(read(again, place, 5000) == content(number, 5000) for number, place in enumerate(places))
    assert again.recovered.torn_pages == 0
    (later,) = again.append([page(99)])
    assert later.segment == places[-1].segment + 1  # never behind what an earlier life wrote
    again.close()


def test_the_settings_limit_segments(tmp_path: Path) -> None:
    segments = opened(tmp_path, max_segments=2)
    segments.append([page(number, 16_384) for number in range(14)])
    with pytest.raises(SsdFull, match="2 segments"):
        segments.append([page(20, 16_384)])
    segments.delete(1)
    assert segments.append([page(20, 16_384)])[0].segment == 3
    segments.close()


def test_a_page_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    with pytest.raises(ValueError, match="does not fit"):
        segments.append([page(1, SEGMENT_BYTES)])
    segments.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    with pytest.raises(SsdInUse, match="another agent"):
        opened(tmp_path)
    segments.close()
    opened(tmp_path).close()


def test_a_deleted_segment_is_gone_and_its_space_too(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    (place,) = segments.append([page(1)])
    segments.delete(place.segment)
    assert read(segments, place, 4096) is None
    assert list(tmp_path.glob("*.lbkv")) == []
    segments.delete(place.segment)
    segments.close()


@pytest.mark.parametrize("cut", [1, 4096, 5000, 9000])
def test_a_torn_tail_is_dropped_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    segments = opened(tmp_path)
    segments.append([page(number) for number in range(4)])
    (last,) = segments.append([page(4, 9000)])
    segments.close()
    path = tmp_path / "000000000001.lbkv"
    os.truncate(path, last.offset + 12_288 - cut)
    os.truncate(path, SEGMENT_BYTES)  # as it was reserved
    again = opened(tmp_path)
    numbers = [each.record.depth for each in again.recovered.pages]
    assert numbers == ([0, 1, 2, 3, 4] if cut < 12_288 - 9000 else [0, 1, 2, 3])
    assert again.recovered.torn_pages == 5 - len(numbers)
    again.close()


def test_files_that_were_being_created_disappear_and_foreign_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "000000000003.lbkv").write_bytes(b"")
    (tmp_path / "000000000004.lbkv").write_bytes(b"\0" * SEGMENT_BYTES)
    (tmp_path / "000000000005.lbkv").write_bytes(b"LBKVSEG9 of a later version")
    (tmp_path / "notes.txt").write_text("mine")
    segments = opened(tmp_path)
    assert segments.recovered.rejected == [tmp_path / "000000000005.lbkv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000000005.lbkv", "lock", "notes.txt"]
    assert segments.append([page(1)])[0].segment == 6  # a rejected file's number is not used again
    segments.close()


def test_a_renamed_segment_is_not_believed(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append([page(1)])
    segments.close()
    os.rename(tmp_path / "000000000001.lbkv", tmp_path / "000000000002.lbkv")
    again = opened(tmp_path)
    assert again.recovered.pages == []
    assert len(again.recovered.rejected) == 1
    again.close()


@pytest.mark.slow
def test_flipped_bits_are_never_served_as_whole_pages(tmp_path: Path) -> None:
    """10,000 flips over headers and pages: what recovery offers and its checksum confirms is what was written."""
    segments = opened(tmp_path)
    segments.append([page(number, 6000) for number in range(10)])
    segments.append([page(number, 6000) for number in range(10, 14)])
    segments.close()
    path = tmp_path / "000000000001.lbkv"
    good = path.read_bytes()
    rng = Random(1)
    confirmed = refused = 0
    for _ in range(200):
        broken = bytearray(good)
        for _ in range(50):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        again = opened(tmp_path)
        for each in again.recovered.pages:
            record = each.record
            bytes_read = read(again, SsdPlace(each.segment, record.offset), record.length)
            if bytes_read is not None and page_checksum(bytes_read) == record.checksum:
                assert (record.digest, bytes_read) == (digest(record.depth), content(record.depth, 6000))
                confirmed += 1
            else:
                refused += 1
        again.close()
        path.unlink(missing_ok=True)
    assert confirmed
    assert refused
