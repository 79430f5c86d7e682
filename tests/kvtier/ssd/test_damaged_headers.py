"""A damaged header costs the pages that it alone knew of: those before and behind it are found again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ssd_pages import KIB, SPACE, content, page, read

from kvtier.page.space import space_digest
from kvtier.ssd.layout import BLOCK_BYTES
from kvtier.ssd.segments import SsdSegments
from kvtier.store.page import SsdPlace

SEGMENT_BYTES = 128 * KIB
GROUPS = [range(0, 3), range(3, 5), range(5, 8)]


def opened(directory: Path) -> SsdSegments:
    return SsdSegments(directory, SEGMENT_BYTES, 8)


def flip(path: Path, at: int) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    os.close(fd)


def written(directory: Path, *, clear_before: int | None = None) -> list[int]:
    """Three groups in one file; where each header begins."""
    segments = opened(directory)
    starts = []
    for index, group in enumerate(GROUPS):
        if index == clear_before:
            segments.clear([space_digest(SPACE)])
        starts.append(segments.append([page(number) for number in group])[0].offset - BLOCK_BYTES)
    segments.close()
    return starts


@pytest.mark.parametrize("damaged", [0, 1, 2])
@pytest.mark.parametrize("byte", [0, 12, 40, 100])  # of the magic, the segment's number, the checksum, the table
def test_a_damaged_group_header_costs_its_own_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: int, byte: int
) -> None:
    starts = written(tmp_path)
    flip(tmp_path / "000000000001.lbkv", starts[damaged] + byte)
    for _ in range(2):  # nor does finding it so lose more for the next life
        again = opened(tmp_path)
        found = again.recovered.pages
        left = [number for group in GROUPS if group != GROUPS[damaged] for number in group]
        assert [each.record.depth for each in found] == left
        for each in found:
            assert read(again, SsdPlace(each.segment, each.record.offset), 4096) == content(each.record.depth, 4096)
        if damaged < 2:  # a tail is taken for torn
            assert again.recovered.lost_bytes == BLOCK_BYTES * (1 + len(GROUPS[damaged]))
            assert "damaged headers" in caplog.text
        again.close()


def test_all_groups_behind_the_first_damaged_one_are_looked_for(tmp_path: Path) -> None:
    starts = written(tmp_path)
    for start in starts[:2]:
        flip(tmp_path / "000000000001.lbkv", start + 40)
    again = opened(tmp_path)
    assert [each.record.depth for each in again.recovered.pages] == list(GROUPS[2])
    again.close()


@pytest.mark.parametrize("blank", [False, True])
def test_a_damaged_file_header_costs_nothing(tmp_path: Path, blank: bool) -> None:
    written(tmp_path)
    path = tmp_path / "000000000001.lbkv"
    flip(path, 3)
    if blank:
        path.write_bytes(bytes(BLOCK_BYTES) + path.read_bytes()[BLOCK_BYTES:])
    again = opened(tmp_path)
    assert [each.record.depth for each in again.recovered.pages] == list(range(8))
    assert again.recovered.rejected == []
    (later,) = again.append([page(9)])
    assert later.segment == 2
    again.close()


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_what_was_cleared_stays_forgotten_whichever_header_is_damaged(tmp_path: Path, damaged: int) -> None:
    starts = written(tmp_path, clear_before=2)
    flip(tmp_path / "000000000001.lbkv", starts[damaged] + 40)
    again = opened(tmp_path)
    assert [each.record.depth for each in again.recovered.pages] == ([] if damaged == 2 else list(GROUPS[2]))
    again.close()


def test_a_header_inside_a_page_is_no_group(tmp_path: Path) -> None:
    """A page that holds a segment file, as it lies somewhere else."""
    starts = written(tmp_path / "inner")
    inner = (tmp_path / "inner" / "000000000001.lbkv").read_bytes()
    segments = opened(tmp_path / "outer")
    (first,) = segments.append([page(1, len(inner))])
    segments.append([page(2)])
    segments.close()
    path = tmp_path / "outer" / "000000000001.lbkv"
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, inner, first.offset)
    os.close(fd)
    flip(path, starts[0] + 40)
    again = opened(tmp_path / "outer")
    assert [each.record.depth for each in again.recovered.pages] == [2]
    again.close()


def test_a_file_that_cannot_be_read_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    unreadable = [tmp_path / "000000000005.lbkv", tmp_path / "000000000007.lbkv"]
    unreadable[0].mkdir()
    unreadable[1].symlink_to(tmp_path / "nowhere")
    again = opened(tmp_path)
    assert [each.record.depth for each in again.recovered.pages] == list(range(8))
    assert again.recovered.rejected == unreadable
    assert all(str(path) in caplog.text for path in unreadable)
    assert again.append([page(9)])[0].segment == 8
    again.close()
