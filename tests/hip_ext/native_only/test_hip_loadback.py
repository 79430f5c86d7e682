"""Restores over a double of HIP's runtime: what is joined, batched, bounded and ordered, and what becomes of every failure."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import loadback_hip
import numpy as np
import pytest
from loadback_hip import HipError, HipStatus, Loadback, PageLayout, Restore, loaded_runtime, probe_hip

pytestmark = pytest.mark.slow

KIB = 1 << 10
LAUNCH_FAILURE = 719


class FakeHip(Protocol):
    path: str
    calls: Any

    def device(self, size: int) -> np.ndarray: ...
    def log(self) -> list[str]: ...
    def count(self, name: str) -> int: ...
    def fail(self, name: str, code: int, after: int = 0) -> None: ...


class Rig:
    """A loadback over the double, host memory that it has pinned, and device memory."""

    def __init__(self, hip: FakeHip, size: int, pinned: bool = True, **options: Any) -> None:
        self.hip = hip
        self.host = np.random.default_rng(3).integers(0, 256, size, "uint8")
        self.device = hip.device(size)
        self.loadback = Loadback(hip.path, **options)
        if pinned:
            self.loadback.add_host(self.host.ctypes.data, size)

    def load(self, pages: list[tuple[int, int]], page_bytes: int, ends: list[int] | None = None, **options: Any) -> Restore:
        """(host page, device page) pairs."""
        to = array("q", [self.device.ctypes.data + page * page_bytes for _, page in pages])
        from_ = array("q", [self.host.ctypes.data + page * page_bytes for page, _ in pages])
        lengths = array("q", [page_bytes] * len(pages))
        return self.loadback.load(to, from_, lengths, array("q", ends or [len(pages)]), **options)


@contextmanager
def rig_of(hip: FakeHip, size: int, **options: Any) -> Iterator[Rig]:
    rig = Rig(hip, size, **options)
    try:
        yield rig
    finally:
        hip.calls.fake_auto(1)
        rig.loadback.close()


def eventually(holds: Callable[[], bool]) -> None:
    """For what another thread is about to do."""
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.0005)


def test_random_pages_arrive_bit_for_bit(hip: FakeHip) -> None:
    page = 4 * KIB
    with rig_of(hip, 2000 * page) as rig:
        targets = np.random.default_rng(1).permutation(2000)
        restore = rig.load([(index, int(target)) for index, target in enumerate(targets)], page)
        assert restore.wait(timeout_s=30) == HipStatus.OK
        assert (rig.device.reshape(2000, page)[targets] == rig.host.reshape(2000, page)).all()
        progress = restore.progress()
    assert (progress.bytes_done, progress.groups_done, progress.detail) == (2000 * page, 1, "")


def test_stores_come_back(hip: FakeHip) -> None:
    with rig_of(hip, 64 * KIB) as rig:
        rig.device[:] = 7
        columns = [array("q", [base]) for base in (rig.host.ctypes.data, rig.device.ctypes.data, 64 * KIB)]
        assert rig.loadback.store(*columns, array("q", [1])).wait() == HipStatus.OK
        assert (rig.host == 7).all()
    assert hip.log() == ["s1 store 65536"]


def test_neighbours_become_one_copy(hip: FakeHip) -> None:
    with rig_of(hip, 3000 * KIB) as rig:
        assert rig.load([(page, page) for page in range(3000)], KIB).wait() == HipStatus.OK
        counters = rig.loadback.counters()
    assert (counters.copies_asked, counters.copies_issued, counters.batches) == (3000, 1, 0)
    assert hip.log() == [f"s0 load {3000 * KIB}"]


def test_neighbours_of_two_groups_stay_apart(hip: FakeHip) -> None:
    with rig_of(hip, 4 * KIB) as rig:
        assert rig.load([(page, page) for page in range(4)], KIB, ends=[2, 4]).wait() == HipStatus.OK
    assert hip.log() == ["s0 load 2048"] * 2


def test_batches_are_bounded_and_one_call(hip: FakeHip) -> None:
    scattered = [(2 * page, page) for page in range(10_000)]
    with rig_of(hip, 20_000 * 64) as rig:
        assert rig.load(scattered, 64).wait() == HipStatus.OK
        assert rig.loadback.counters().batches == 2
    assert hip.count("hipMemcpyBatchAsync") == 2
    assert hip.count("hipMemcpyAsync") == 0


def test_a_runtime_that_knows_no_batches_is_asked_once(hip: FakeHip) -> None:
    hip.calls.fake_batch(0)
    scattered = [(2 * page, page) for page in range(100)]
    with rig_of(hip, 200 * KIB) as rig:
        for _ in range(2):
            assert rig.load(scattered, KIB).wait() == HipStatus.OK
        assert rig.loadback.counters().batch_refused
        assert (rig.device.reshape(200, KIB)[:100] == rig.host.reshape(200, KIB)[::2]).all()
    assert hip.count("hipMemcpyBatchAsync") == 1
    assert hip.count("hipMemcpyAsync") == 200


def test_bytes_under_way_are_bounded(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 1024 * KIB, window_bytes=128 * KIB, chunk_bytes=32 * KIB) as rig:
        restore = rig.load([(0, 0)], 1024 * KIB)
        eventually(lambda: hip.calls.fake_queued_bytes() == 128 * KIB)
        assert restore.progress().bytes_issued == 128 * KIB
        while restore.progress().bytes_done < 1024 * KIB:
            hip.calls.fake_run(2)  # a copy and the event behind it
        assert restore.wait() == HipStatus.OK
    assert hip.calls.fake_peak_bytes() == 128 * KIB


def test_submitting_does_not_wait(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 64 * KIB) as rig:
        restore = rig.load([(0, 0)], 64 * KIB)
        assert restore.wait(timeout_s=0.05) == HipStatus.PENDING
        assert not restore.group_done(0)
        assert not rig.device.any()


def test_groups_come_in_order(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 4 * KIB) as rig:
        restore = rig.load([(page, 3 - page) for page in range(4)], KIB, ends=[1, 2, 4])
        ran = 0
        while ran < 2:  # the first group's copy, and the event behind it
            ran += hip.calls.fake_run(2 - ran)
        eventually(lambda: restore.group_done(0))
        assert (restore.group_done(1), restore.group_done(2)) == (False, False)
        assert restore.wait(groups=1, timeout_s=0) == HipStatus.OK
        assert restore.wait(groups=2, timeout_s=0) == HipStatus.PENDING
        hip.calls.fake_auto(1)
        assert restore.wait() == HipStatus.OK
        with pytest.raises(IndexError):
            restore.group_done(3)


def test_two_streams_take_groups_in_turn(hip: FakeHip) -> None:
    with rig_of(hip, 4 * KIB, load_streams=2) as rig:
        assert rig.load([(page, 3 - page) for page in range(4)], KIB, ends=[1, 2, 3, 4]).wait() == HipStatus.OK
    assert sorted(hip.log()) == ["s0 load 1024"] * 2 + ["s1 load 1024"] * 2


def test_a_group_without_copies_is_there(hip: FakeHip) -> None:
    with rig_of(hip, 4 * KIB) as rig:
        assert rig.load([(0, 0)], KIB, ends=[0, 1, 1]).wait() == HipStatus.OK
        assert rig.loadback.load(*[array("q")] * 4).wait() == HipStatus.OK


def test_the_nearest_deadline_goes_first(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 1024 * KIB, window_bytes=64 * KIB, chunk_bytes=64 * KIB) as rig:
        running = rig.load([(0, 0)], 64 * KIB)
        eventually(lambda: hip.calls.fake_queued_bytes() > 0)
        late = rig.load([(1, 1)], 64 * KIB, deadline_s=100.0)
        soon = rig.load([(2, 2)], 64 * KIB, deadline_s=50.0)
        now = rig.load([(3, 3)], 64 * KIB)
        order: list[Restore] = []
        while len(order) < 4:
            hip.calls.fake_run(1)
            order += [each for each in (running, now, soon, late) if each.group_done(0) and each not in order]
        assert order == [running, now, soon, late]


def test_what_has_time_leaves_the_way_free(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 256 * KIB, window_bytes=256 * KIB, chunk_bytes=16 * KIB) as rig:
        relaxed = rig.load([(0, 0)], 128 * KIB, deadline_s=1000.0)
        eventually(lambda: relaxed.progress().bytes_issued == 16 * KIB)
        urgent = rig.load([(1, 1)], 128 * KIB)
        eventually(lambda: urgent.progress().bytes_issued == 128 * KIB)
        assert relaxed.progress().bytes_issued == 16 * KIB


def test_a_stream_waits_for_a_recorded_event(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 64 * KIB, window_bytes=32 * KIB, chunk_bytes=32 * KIB) as rig:
        restore = rig.load([(0, 0), (1, 1)], 32 * KIB, ends=[1, 2])
        restore.hold_stream(77, 0)
        assert hip.log() == ["stream 77 waits"]
        with pytest.raises(HipError, match="not submitted in time") as late:
            restore.hold_stream(77, 1, timeout_s=0.02)
        assert late.value.status == HipStatus.PENDING
        hip.calls.fake_auto(1)
        assert restore.wait() == HipStatus.OK
        restore.hold_stream(77, 1)  # there already
        with pytest.raises(IndexError):
            restore.hold_stream(77, 2)
    assert "stream 77 waits for nothing" not in hip.log()


def test_cancelling_leaves_what_is_under_way(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 256 * KIB, window_bytes=32 * KIB, chunk_bytes=32 * KIB) as rig:
        restore = rig.load([(0, 0)], 256 * KIB)
        eventually(lambda: hip.calls.fake_queued_bytes() == 32 * KIB)
        restore.cancel()
        assert restore.wait(timeout_s=0.02) == HipStatus.PENDING  # its memory is in use
        with pytest.raises(HipError, match="will not come"):
            restore.hold_stream(77, 0)
        hip.calls.fake_run(2)
        assert restore.wait() == HipStatus.CANCELLED
        assert restore.progress().bytes_issued == 32 * KIB
        hip.calls.fake_auto(1)
        assert rig.load([(0, 0)], 256 * KIB).wait() == HipStatus.OK  # the way is free again


@pytest.mark.parametrize("call", ["hipMemcpyAsync", "hipEventRecord", "hipEventCreateWithFlags"])
def test_a_call_that_fails(hip: FakeHip, call: str) -> None:
    with rig_of(hip, 256 * KIB, window_bytes=64 * KIB, chunk_bytes=16 * KIB) as rig:
        hip.fail(call, LAUNCH_FAILURE, after=2)
        restore = rig.load([(0, 0)], 256 * KIB)
        assert restore.wait() == HipStatus.COPY_FAILED
        progress = restore.progress()
    assert progress.code == LAUNCH_FAILURE
    assert "unspecified launch failure (719)" in progress.detail
    assert progress.bytes_done <= progress.bytes_issued < 256 * KIB
    assert hip.calls.fake_queued_bytes() == 0


def test_a_copy_that_fails_while_it_runs(hip: FakeHip) -> None:
    hip.calls.fake_running_error(LAUNCH_FAILURE)
    with rig_of(hip, 256 * KIB, window_bytes=64 * KIB, chunk_bytes=16 * KIB) as rig:
        restore = rig.load([(0, 0), (1, 1)], 128 * KIB, ends=[1, 2])
        assert restore.wait() == HipStatus.COPY_FAILED
        assert restore.wait(groups=1) == HipStatus.COPY_FAILED
        assert restore.progress().groups_done == 0
    assert hip.calls.fake_queued_bytes() == 0


def test_a_batch_that_fails_in_the_middle_is_drained(hip: FakeHip) -> None:
    with rig_of(hip, 64 * KIB) as rig:
        columns = [array("q", [base, base + 2 * KIB, 16]) for base in (rig.device.ctypes.data, rig.host.ctypes.data)]
        columns[1][2] = rig.host.ctypes.data
        restore = rig.loadback.load(*columns, array("q", [KIB] * 3), array("q", [3]))
        assert restore.wait() == HipStatus.COPY_FAILED
        assert not rig.loadback.counters().batch_refused
    assert hip.calls.fake_queued_bytes() == 0


def test_memory_that_is_not_pinned_is_refused(hip: FakeHip) -> None:
    with rig_of(hip, 64 * KIB, pinned=False) as rig:
        restore = rig.load([(0, 0)], 64 * KIB)
        assert restore.wait() == HipStatus.NOT_PINNED
        assert "add it first" in restore.progress().detail
        assert (restore.group_done(0), restore.progress().bytes_done) == (False, 0)
        assert hip.count("hipMemcpyAsync") == 0
        assert hip.calls.fake_last_error() == 0  # an engine would take it for its own
        rig.loadback.add_host(rig.host.ctypes.data, 64 * KIB)
        assert rig.load([(0, 0)], 64 * KIB).wait() == HipStatus.OK


def test_memory_that_is_not_pinned_may_be_staged(hip: FakeHip) -> None:
    with rig_of(hip, 64 * KIB, pinned=False, allow_unpinned=True) as rig:
        assert rig.load([(0, 0)], 64 * KIB).wait() == HipStatus.OK
        assert rig.loadback.counters().unpinned_copies == 1
        assert (rig.device == rig.host).all()


def test_memory_that_the_engine_pinned_is_welcome(hip: FakeHip) -> None:
    with rig_of(hip, 64 * KIB, pinned=False) as rig:
        hip.calls.fake_pin(rig.host.ctypes.data, 64 * KIB)
        assert rig.load([(0, 0)], 64 * KIB).wait() == HipStatus.OK
        rig.loadback.add_host(rig.host.ctypes.data, 64 * KIB)
    assert hip.calls.fake_pinned_ranges() == 1  # the engine's stays


def test_pinning_that_fails(hip: FakeHip) -> None:
    hip.fail("hipHostRegister", 2)
    with (
        rig_of(hip, 64 * KIB, pinned=False) as rig,
        pytest.raises(HipError, match=r"hipHostRegister: some error \(2\)") as failed,
    ):
        rig.loadback.add_host(rig.host.ctypes.data, 64 * KIB)
    assert (failed.value.status, failed.value.code) == (HipStatus.REGISTER_FAILED, 2)


def test_memory_in_use_stays_pinned(hip: FakeHip) -> None:
    hip.calls.fake_auto(0)
    with rig_of(hip, 64 * KIB) as rig:
        restore = rig.load([(0, 0)], 64 * KIB)
        with pytest.raises(HipError, match="copies are to do") as busy:
            rig.loadback.remove_host(rig.host.ctypes.data)
        assert busy.value.status == HipStatus.BUSY
        hip.calls.fake_auto(1)
        assert restore.wait() == HipStatus.OK
        rig.loadback.remove_host(rig.host.ctypes.data)
        assert hip.calls.fake_pinned_ranges() == 0
        with pytest.raises(ValueError, match="was not added"):
            rig.loadback.remove_host(rig.host.ctypes.data)


def test_closing_drains_and_gives_everything_back(hip: FakeHip) -> None:
    with rig_of(hip, 256 * KIB, window_bytes=32 * KIB, chunk_bytes=32 * KIB) as rig:
        hip.calls.fake_auto(0)
        restore = rig.load([(0, 0)], 256 * KIB)
        eventually(lambda: hip.calls.fake_queued_bytes() > 0)
        hip.calls.fake_auto(1)
        rig.loadback.close()
        assert restore.progress().status in (HipStatus.CANCELLED, HipStatus.OK)
        with pytest.raises(HipError, match="is closed") as closed:
            rig.load([(0, 0)], KIB)
        assert closed.value.status == HipStatus.CLOSED
    assert hip.calls.fake_pinned_ranges() == 0
    assert hip.count("hipStreamDestroy") == hip.count("hipStreamCreateWithPriority") == 2


def test_events_are_used_again_and_destroyed(hip: FakeHip) -> None:
    with rig_of(hip, 256 * KIB, window_bytes=32 * KIB, chunk_bytes=16 * KIB) as rig:
        for _ in range(5):
            assert rig.load([(0, 0)], 256 * KIB).wait() == HipStatus.OK
        assert hip.count("hipEventCreateWithFlags") < 20
        assert hip.count("hipEventRecord") == 5 * 16
    del rig
    assert hip.count("hipEventDestroy") == hip.count("hipEventCreateWithFlags")


def test_pages_of_all_layers(hip: FakeHip) -> None:
    layers, pages, size = 6, 10, 512
    host = np.random.default_rng(2).integers(0, 256, (pages, layers, size), "uint8")
    device = hip.device(layers * pages * size)
    by_layer = device.reshape(layers, pages, size)
    layout = PageLayout(
        host=host.ctypes.data,
        host_pages=pages,
        host_page_stride=layers * size,
        host_layer_stride=size,
        layers=[by_layer[layer].ctypes.data for layer in range(layers)],
        device_pages=pages,
        device_page_stride=size,
        bytes=size,
        layers_per_group=4,
    )
    hosts, devices = array("q", [9, 0, 5]), array("q", [1, 2, 7])
    loadback = Loadback(hip.path)
    loadback.add_host(host.ctypes.data, host.nbytes)
    restore = loadback.load_pages(layout, hosts, devices)
    assert restore.wait() == HipStatus.OK
    assert restore.progress().groups == 2
    assert (by_layer[:, devices] == host[hosts].swapaxes(0, 1)).all()
    assert not by_layer[:, [0, 3, 4, 5, 6, 8, 9]].any()
    before = host.copy()
    assert loadback.store_pages(layout, array("q", [1, 2, 3]), devices).wait() == HipStatus.OK
    assert (host[[1, 2, 3]] == before[[9, 0, 5]]).all()
    with pytest.raises(IndexError, match="host page 10 is not one of 10"):
        loadback.load_pages(layout, array("q", [10]), array("q", [0]))
    with pytest.raises(IndexError, match="device page -1 is not one of 10"):
        loadback.load_pages(layout, array("q", [0]), array("q", [-1]))
    loadback.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"load_streams": 3}, "load_streams must be 1 or 2"),
        ({"chunk_bytes": 0}, "chunk_bytes must be above 0"),
        ({"window_bytes": 1}, "window_bytes not below it"),
        ({"batch_max": 8193}, "batch_max must be 1 to 8192"),
    ],
)
def test_options_that_make_no_sense(hip: FakeHip, options: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Loadback(hip.path, **options)


def test_copies_that_make_no_sense(hip: FakeHip) -> None:
    one, two = array("q", [1]), array("q", [1, 2])
    with rig_of(hip, KIB) as rig:
        for columns, reason in (
            ((two, one, one, one), "equally long"),
            ((one, one, one, two), "group_ends must end with the number of copies"),
            ((two, two, two, array("q", [3, 2])), "group_ends must not fall"),
            ((one, one, array("q", [-1]), one), "a length is below 0"),
        ):
            with pytest.raises(ValueError, match=reason):
                rig.loadback.load(*columns)


def test_no_device(hip: FakeHip) -> None:
    with pytest.raises(HipError, match="hipSetDevice") as missing:
        Loadback(hip.path, device=4)
    assert (missing.value.status, missing.value.code) == (HipStatus.NO_DEVICE, 101)
    hip.calls.fake_devices(0)
    assert (probe_hip(hip.path).status, probe_hip(hip.path).devices) == (HipStatus.NO_DEVICE, 0)
    with pytest.raises(HipError, match=r"no GPU: some error \(100\)"):
        Loadback(hip.path)


def test_no_runtime() -> None:
    probe = probe_hip("/nowhere/libamdhip64.so")
    assert probe.status == HipStatus.NO_RUNTIME
    assert "/nowhere/libamdhip64.so" in probe.detail
    with pytest.raises(HipError, match="no HIP runtime") as missing:
        Loadback("/nowhere/libamdhip64.so")
    assert missing.value.status == HipStatus.NO_RUNTIME


def test_a_library_without_the_calls() -> None:
    probe = probe_hip("libm.so.6")
    assert probe.status == HipStatus.MISSING_CALL
    assert "libm.so.6 has no hip" in probe.detail


def test_what_was_found(hip: FakeHip, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_hip(hip.path)
    assert (probe.status, probe.path, probe.devices, probe.version) == (HipStatus.OK, hip.path, 1, 70125424)
    assert (probe.has_batch, probe.sdma_off, probe.detail) == (True, False, "")
    monkeypatch.setenv("HSA_ENABLE_SDMA", "0")
    assert probe_hip(hip.path).sdma_off
    assert "take compute units" in probe_hip(hip.path).detail


@pytest.mark.parametrize(
    ("maps", "path"),
    [
        ("", ""),
        ("7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n", ""),
        (
            "7f00-7f01 r-xp 0 08:01 12 /usr/lib/libc.so.6\n7f02-7f03 r-xp 00000000 08:01 13 /opt/rocm lib/libamdhip64.so.7.1\n",
            "/opt/rocm lib/libamdhip64.so.7.1",
        ),
        ("7f02-7f03 r--p 00000000 08:01 13   /opt/venv/torch/lib/libamdhip64.so", "/opt/venv/torch/lib/libamdhip64.so"),
    ],
)
def test_the_engines_runtime_comes_first(maps: str, path: str) -> None:
    assert loaded_runtime(maps) == path


def test_every_status_has_a_word() -> None:
    assert {status.name for status in HipStatus} >= {
        "OK",
        "NO_RUNTIME",
        "NO_DEVICE",
        "NOT_PINNED",
        "REGISTER_FAILED",
        "COPY_FAILED",
    }
    assert loadback_hip.HipStatus is HipStatus
