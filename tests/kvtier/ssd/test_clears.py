"""What was cleared stays forgotten: by the next life and the one after it, whatever a crash left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ssd_pages import KIB, OTHER_SPACE, SPACE, page

from kvtier.page.space import space_digest
from kvtier.ssd.clears import FILE_NAME
from kvtier.ssd.segments import SsdSegments

SEGMENT_BYTES = 128 * KIB
SPACE_DIGEST = space_digest(SPACE)


def opened(directory: Path) -> SsdSegments:
    return SsdSegments(directory, SEGMENT_BYTES, 8)


def numbers(segments: SsdSegments) -> list[int]:
    """Of the pages that were found."""
    return [each.record.depth for each in segments.recovered.pages]


def test_cleared_pages_are_not_found_again_and_later_ones_are(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append([page(number, 16_384) for number in range(10)])
    segments.append([page(number, 16_384, OTHER_SPACE) for number in range(20, 22)])
    segments.clear([SPACE_DIGEST])
    segments.append([page(30), page(31)])
    segments.close()
    for _ in range(2):
        again = opened(tmp_path)
        assert numbers(again) == [20, 21, 30, 31]
        again.close()


def test_a_space_may_be_cleared_more_than_once(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    for first in (0, 10):
        segments.append([page(first), page(first + 1, space=OTHER_SPACE)])
        segments.clear([SPACE_DIGEST])
    segments.clear([space_digest(OTHER_SPACE)])
    segments.append([page(20)])
    segments.close()
    again = opened(tmp_path)
    assert numbers(again) == [20]
    again.close()


def test_new_segments_are_never_numbered_like_cleared_ones(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append([page(number, 16_384) for number in range(20)])
    segments.clear([SPACE_DIGEST])
    segments.close()
    empty = opened(tmp_path)
    assert list(tmp_path.glob("*.lbkv")) == []  # nothing in them was worth keeping
    empty.append([page(1)])
    empty.close()
    again = opened(tmp_path)
    assert numbers(again) == [1]
    again.close()


def test_notes_about_segments_that_have_gone_are_dropped(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    (place,) = segments.append([page(1)])
    segments.clear([SPACE_DIGEST])
    segments.delete(place.segment)
    segments.append([page(2, space=OTHER_SPACE)])
    segments.clear([space_digest(OTHER_SPACE)])
    segments.close()
    again = opened(tmp_path)
    assert set(again.recovered.clears) == {space_digest(OTHER_SPACE)}
    again.close()


def test_a_torn_tail_behind_a_clear_brings_nothing_back(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append([page(number) for number in range(4)])
    segments.clear([SPACE_DIGEST])
    segments.append([page(10)])
    (last,) = segments.append([page(11, 9000)])
    segments.close()
    path = tmp_path / "000000000001.lbkv"
    os.truncate(path, last.offset + 4096)
    os.truncate(path, SEGMENT_BYTES)  # as it was reserved
    again = opened(tmp_path)
    assert (numbers(again), again.recovered.torn_pages) == ([10], 1)
    again.close()


@pytest.mark.parametrize("left", [b"", b"LBKVCLR1", b"x" * 100])
def test_a_note_that_was_being_written_does_not_count_and_does_no_harm(tmp_path: Path, left: bytes) -> None:
    segments = opened(tmp_path)
    segments.append([page(1), page(2, space=OTHER_SPACE)])
    segments.clear([SPACE_DIGEST])
    segments.close()
    (tmp_path / f"{FILE_NAME}.new").write_bytes(left)
    again = opened(tmp_path)
    assert numbers(again) == [2]
    again.clear([space_digest(OTHER_SPACE)])
    again.close()
    last = opened(tmp_path)
    assert numbers(last) == []
    last.close()


@pytest.mark.parametrize("at", [0, 9, 20, -20, -1])
def test_a_damaged_byte_takes_nothing_from_a_note(tmp_path: Path, at: int) -> None:
    segments = opened(tmp_path)
    segments.append([page(1), page(2, space=OTHER_SPACE)])
    segments.clear([SPACE_DIGEST])
    segments.close()
    damage(tmp_path / FILE_NAME, at)
    again = opened(tmp_path)
    assert numbers(again) == [2]
    again.close()


def test_with_a_lost_note_nothing_cleared_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor anything else that may have been; what is written later stays."""
    segments = opened(tmp_path)
    segments.append([page(1), page(2, space=OTHER_SPACE)])
    segments.clear([SPACE_DIGEST])
    segments.close()
    foreign = tmp_path / "000000000007.lbkv"
    foreign.write_bytes(b"LBKVSEG9 of a later version")
    damage(tmp_path / FILE_NAME, 20, -1)
    again = opened(tmp_path)
    assert numbers(again) == []
    assert again.recovered.lost_bytes > 0
    assert again.recovered.rejected == [foreign]
    assert "cannot be told" in caplog.text
    again.append([page(3)])
    again.close()
    last = opened(tmp_path)
    assert numbers(last) == [3]
    last.close()


def damage(path: Path, *at: int) -> None:
    data = bytearray(path.read_bytes())
    for each in at:
        data[each] ^= 1
    path.write_bytes(data)


def test_a_clear_that_cannot_be_noted_raises_and_the_old_one_holds(tmp_path: Path) -> None:
    segments = opened(tmp_path)
    segments.append([page(1), page(2, space=OTHER_SPACE)])
    segments.clear([SPACE_DIGEST])
    (tmp_path / f"{FILE_NAME}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        segments.clear([space_digest(OTHER_SPACE)])
    segments.close()
    (tmp_path / f"{FILE_NAME}.new").rmdir()
    again = opened(tmp_path)
    assert numbers(again) == [2]
    again.close()
