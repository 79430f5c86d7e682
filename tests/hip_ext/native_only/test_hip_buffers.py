"""Host memory: every backing, what was really got, sharing by descriptor, and NUMA from a made-up sysfs."""

from __future__ import annotations

import mmap
import os
import socket
from errno import EBADMSG, ECONNRESET, ENOMEM
from pathlib import Path

import pytest
from loadback_hip import (
    Backing,
    HostBuffer,
    Prefault,
    numa_nodes,
    parse_cpu_list,
    receive_descriptor,
    send_descriptor,
)

HUGE = 2 << 20
BACKINGS = [Backing.PLAIN, Backing.THP, Backing.HUGETLB, Backing.MEMFD, Backing.MEMFD_HUGETLB]
SHARED = (Backing.MEMFD, Backing.MEMFD_HUGETLB)


def kib_of(buffer: HostBuffer, field: str) -> int:
    """What the kernel counts for the mapping."""
    with open("/proc/self/smaps", encoding="ascii") as maps:
        for line in maps:
            if line.startswith(f"{buffer.address:x}-"):
                return next(int(line.split()[1]) for line in maps if line.startswith(f"{field}:"))
    raise AssertionError("not mapped")


@pytest.mark.parametrize("backing", BACKINGS)
def test_any_backing_gives_memory(backing: Backing) -> None:
    buffer = HostBuffer.create(3 * HUGE + 5000, backing)
    view = memoryview(buffer)
    assert (len(view), buffer.bytes, view.readonly) == (3 * HUGE + 5000, 3 * HUGE + 5000, False)
    view[:4], view[-4:] = b"head", b"tail"
    assert bytes(view[4:-4]) == bytes(len(view) - 8)
    assert buffer.report.asked == backing
    assert (buffer.fd >= 0) == (buffer.report.got in SHARED)
    assert (backing in SHARED) == (buffer.report.got in SHARED)  # never demoted to what cannot be shared
    assert bool(buffer.report.note) == (buffer.report.got != backing)
    del buffer
    assert bytes(view[:4]) == b"head"  # a view keeps the memory


@pytest.mark.parametrize("backing", [Backing.PLAIN, Backing.MEMFD])
def test_prefault_makes_it_resident(backing: Backing) -> None:
    filled = HostBuffer.create(HUGE, backing)
    assert kib_of(filled, "Rss") == HUGE >> 10
    assert filled.report.prefault in (Prefault.POPULATED, Prefault.TOUCHED)
    assert filled.report.prefault_ms > 0
    empty = HostBuffer.create(HUGE, backing, prefault=False)
    assert kib_of(empty, "Rss") == 0
    assert empty.report.prefault == Prefault.NONE


def test_transparent_huge_pages_are_counted_as_the_kernel_does() -> None:
    buffer = HostBuffer.create(4 * HUGE, Backing.THP)
    assert buffer.address % HUGE == 0
    assert buffer.report.huge_bytes == kib_of(buffer, "AnonHugePages") << 10
    assert (buffer.report.got == Backing.THP) == (buffer.report.huge_bytes > 0)


@pytest.mark.parametrize("backing", [Backing.HUGETLB, Backing.MEMFD_HUGETLB])
def test_huge_pages_that_are_not_there(backing: Backing) -> None:
    size = 1 << 46  # more than any machine reserves
    with pytest.raises(OSError, match=r"raise vm\.nr_hugepages by 33554432") as refused:
        HostBuffer.create(size, backing, required=True, prefault=False)
    assert refused.value.errno == ENOMEM


def test_sizes_and_nodes_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="bytes must be above 0"):
        HostBuffer.create(0)
    with pytest.raises(ValueError, match="this machine has no NUMA node 777"):
        HostBuffer.create(HUGE, Backing.PLAIN, node=777)


def test_memory_on_a_node() -> None:
    node = min(numa_nodes())
    assert HostBuffer.create(HUGE, Backing.PLAIN, node=node).report.node == node


def test_another_process_sees_the_same_bytes() -> None:
    buffer = HostBuffer.create(HUGE, Backing.MEMFD)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if not pid:
            fd, note = receive_descriptor(theirs.fileno())
            other = mmap.mmap(fd, HUGE)
            other[:9] = note
            os._exit(0)
        send_descriptor(ours.fileno(), buffer.fd, b"2 MiB: ok")
        assert os.waitpid(pid, 0)[1] == 0
    assert bytes(memoryview(buffer)[:9]) == b"2 MiB: ok"
    attached = HostBuffer.attach(buffer.fd, HUGE)
    assert bytes(memoryview(attached)[:9]) == b"2 MiB: ok"
    assert attached.fd != buffer.fd
    with pytest.raises(ValueError, match="has 2097152 bytes, not 2097153"):
        HostBuffer.attach(buffer.fd, HUGE + 1)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 4096)  # sealed: a peer that shrinks it would kill us


def test_descriptors_come_one_at_a_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"no descriptor")
        with pytest.raises(OSError, match="not exactly one") as refused:
            receive_descriptor(theirs.fileno())
        assert refused.value.errno == EBADMSG
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(ours, [b"two"], [0, 1])
        with pytest.raises(OSError, match="not exactly one"):
            receive_descriptor(theirs.fileno())
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(ValueError, match="1 to 4096"):
            send_descriptor(ours.fileno(), 0, b"")
        ours.close()
        with pytest.raises(OSError, match="has closed") as refused:
            receive_descriptor(theirs.fileno())
        assert refused.value.errno == ECONNRESET


def test_nodes_of_a_large_machine(tmp_path: Path) -> None:
    (tmp_path / "online").write_text("0-1,4\n")
    for node, cpus in ((0, "0-2,8"), (1, "3-4"), (4, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert numa_nodes(str(tmp_path)) == {0: [0, 1, 2, 8], 1: [3, 4], 4: []}


def test_a_kernel_without_nodes(tmp_path: Path) -> None:
    assert numa_nodes(str(tmp_path)) == {0: list(range(os.cpu_count() or 1))}


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-2-3", "99999999999"])
def test_cpu_lists_of_nonsense(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of CPUs"):
        parse_cpu_list(text)
