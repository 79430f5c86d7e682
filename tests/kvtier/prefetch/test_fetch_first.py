"""Turns that wait in the gateway until their pages have come: only where that is quicker, and only so long."""

from __future__ import annotations

from prefetch_world import TOKEN_BYTES, Drive, World

from costmodel.values import WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import FailReason, Trigger
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner

W1 = WorkerKey("w1")
TOKENS = 1_600  # 800 ms to compute, 1.6 MB: 320 ms at half of 10 MB/s


def comes(world: World, params: PrefetchParams | None = None) -> Drive:
    world.remote("t", TOKENS, "n2")
    drive = Drive(Planner(params), world)
    drive.tell(ev.Held("t", W1))
    return drive


def waits(drive: Drive) -> bool:
    return drive.planner.fetches("t", W1, drive.now_ms)


def test_a_turn_waits_for_pages_that_come_sooner_than_they_are_computed() -> None:
    drive = comes(World())
    assert waits(drive)
    assert [(move.path.source, move.path.target, move.tokens) for move in drive.stages.values()] == [("n2", "n1", TOKENS)]
    assert drive.planner.take_released(drive.now_ms) == []
    (move,) = drive.stages
    drive.stages.clear()
    drive.now_ms = 320.0
    drive.tell(ev.MoveEnded(move, int(TOKENS * TOKEN_BYTES)))
    assert not waits(drive)
    assert drive.planner.take_released(drive.now_ms) == [W1]
    assert drive.planner.take_released(drive.now_ms) == [], "told once"
    drive.tell(ev.Sent("t", W1))
    drive.tell(ev.Served("t", W1, TOKENS))
    tally = drive.planner.tallies[Trigger.DECISION]
    assert (tally.useful_bytes, tally.late_bytes, tally.wasted_bytes) == (TOKENS * TOKEN_BYTES, 0, 0)
    assert drive.holds == {}


def test_nobody_waits_where_to_compute_is_quicker() -> None:
    drive = comes(World(link_bytes_per_ms=1_000.0))
    assert not waits(drive)
    assert drive.stages == {}


def test_nobody_waits_where_the_engine_reads_other_nodes_by_itself() -> None:
    assert not waits(comes(World(reads_remote=True, link_bytes_per_ms=50_000.0)))


def test_nobody_waits_without_the_trigger() -> None:
    assert not waits(comes(World(), PrefetchParams(triggers=frozenset(Trigger) - {Trigger.DECISION})))


def test_nobody_waits_for_longer_than_computing_takes() -> None:
    drive = comes(World())
    assert waits(drive)
    drive.now_ms = 2_000.0
    assert not waits(drive)
    assert drive.planner.take_released(drive.now_ms) == [W1]


def test_a_transfer_that_fails_releases_the_turn() -> None:
    drive = comes(World())
    assert waits(drive)
    (move,) = drive.stages
    drive.stages.clear()
    drive.tell(ev.MoveFailed(move, FailReason.TRANSFER))
    assert drive.planner.take_released(drive.now_ms) == [W1]
    assert not waits(drive)


def test_what_is_under_way_for_an_idle_thread_is_waited_for_as_well() -> None:
    world = World(queue_ms={"1": 400.0})
    drive = comes(world)
    drive.tell(ev.Sent("t", W1))
    assert drive.stages, "a turn that queues for longer goes on fetching"
    drive.tell(ev.Held("t", W1))
    assert waits(drive)
    assert drive.planner.tallies[Trigger.DECISION].late_bytes == TOKENS * TOKEN_BYTES, "counted when it was sent, once"
    drive.tell(ev.Sent("t", W1))
    assert drive.planner.tallies[Trigger.DECISION].late_bytes == TOKENS * TOKEN_BYTES, "nor again when it is tried again"
