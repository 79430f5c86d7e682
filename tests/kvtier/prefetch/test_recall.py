"""Turns in an engine's queue whose pages have left L2: read again once, when they are next but a few."""

from __future__ import annotations

from prefetch_world import TOKEN_BYTES, Drive, World

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import JobState
from kvtier.prefetch.lines import Lines
from kvtier.prefetch.moves import CancelMove, Warm
from kvtier.prefetch.params import Mode, PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.recall import in_l3
from kvtier.prefetch.tally import Tally
from kvtier.prefetch.view import Extent, Place

W1, W2 = WorkerKey("w1"), WorkerKey("w2")
TURNS = tuple(f"t{number}" for number in range(6))
PARAMS = PrefetchParams(recall_turns=2, recall_after_ms=1_000.0)


def queued(params: PrefetchParams = PARAMS) -> Drive:
    """Six turns that were sent to w1 at once; of each prompt the last 800 of 1,000 tokens are in L3 alone."""
    world = World(warmable=True, queue_ms={"1": 9_000.0})
    for turn in TURNS:
        evicted(world, turn)
    drive = Drive(Planner(params), world)
    for turn in TURNS:
        drive.tell(ev.Sent(turn, W1))
    return drive


def evicted(world: World, turn: str, node: str = "n1") -> None:
    world.extents[turn] = (Extent(0, 200, engine=Tier.L1), Extent(200, 800, (Place(node, Tier.L3),)))
    world.prompts[turn], world.chosen[turn] = 1_100, "1"


def asked(drive: Drive) -> list[str]:
    return [move.subject for move in drive.warms.values()]


def tally(drive: Drive) -> Tally:
    return drive.planner.tallies[Trigger.DECISION]


def test_pages_are_read_again_for_those_in_front_of_the_line() -> None:
    drive = queued()
    assert asked(drive) == [], "what the engine reads when a turn comes is on its way"
    drive.now_ms = 2_000.0
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == ["t2", "t3"], "the first, t1, is being computed"
    assert [(move.tokens, move.size_bytes) for move in drive.warms.values()] == [(1_000, 800 * TOKEN_BYTES)] * 2
    assert [hold.tokens for hold in drive.holds.values()] == [1_000, 1_000], "leased until the turn has used them"
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == ["t2", "t3"], "once each"


def test_turns_whose_kv_is_on_its_way_to_decode_need_nothing() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    for turn in ("t1", "t2"):
        drive.world.extents[turn] = (Extent(0, 1_000, engine=Tier.L1),)
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == ["t4", "t5"], "t3 is being computed"
    evicted(drive.world, "t2")
    drive.tell(ev.Prefilled("t1"))
    assert asked(drive) == ["t4", "t5"], "what was computed is so, whatever became of it"


def test_the_request_is_taken_back_when_the_turn_is_over_and_the_next_is_looked_at() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    drive.tell(ev.Prefilled("t0"))
    drive.tell(ev.Prefilled("t1"))
    moves = drive.tell(ev.Prefilled("t2"))
    assert isinstance(moves[0], CancelMove)
    assert asked(drive) == ["t3", "t4", "t5"]
    drive.tell(ev.Served("t2", W1, 1_000))
    assert (tally(drive).recalled_bytes, tally(drive).recall_wasted_bytes) == (800 * TOKEN_BYTES, 0)
    assert len(drive.holds) == 3
    drive.tell(ev.Prefilled("t3"))
    drive.tell(ev.Served("t3", W1, 300))
    assert (tally(drive).recalled_bytes, tally(drive).recall_wasted_bytes) == (1_600 * TOKEN_BYTES, 700 * TOKEN_BYTES)
    assert tally(drive).jobs == {JobState.CONSUMED: 2}


def test_what_the_engine_still_has_is_not_read_again() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    drive.world.extents["t2"] = (Extent(0, 1_000, engine=Tier.L2),)
    evicted(drive.world, "t3", node="n2")
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == [], "in L2, and on a node that this engine does not read"
    evicted(drive.world, "t2")
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == [], "the line has not moved"
    drive.tell(ev.Prefilled("t3"))
    assert asked(drive) == ["t2", "t4"], "it has been evicted since"


def test_a_turn_that_was_sent_just_now_is_left_alone() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    drive.tell(ev.Sent("t2", W1))
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == ["t3", "t4"], "it has gone to the end of the line"
    assert in_l3(drive.world.target("t2", W1)) == (200, 1_000)  # type: ignore[arg-type]


def test_a_request_that_was_served_whole_ends_nothing() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    drive.tell(ev.Prefilled("t0"))
    (move, *_) = sorted(drive.warms)
    done: Warm = drive.warms.pop(move)
    drive.tell(ev.MoveEnded(move, done.size_bytes))
    assert tally(drive).warmed_bytes == 0, "counted as what it is"
    drive.tell(ev.Prefilled("t2"))
    drive.tell(ev.Served("t2", W1, None))
    assert (tally(drive).recalled_bytes, tally(drive).recall_wasted_bytes) == (800 * TOKEN_BYTES, 0)


def test_switched_off_or_without_its_trigger_nothing_is_read_again() -> None:
    for params in (
        PrefetchParams(mode=Mode.OFF),
        PrefetchParams(triggers=frozenset(Trigger) - {Trigger.DECISION}),
        PrefetchParams(mode=Mode.DRY_RUN, recall_turns=2),
    ):
        drive = queued(params)
        drive.now_ms = 2_000.0
        drive.tell(ev.Prefilled("t0"))
        assert asked(drive) == []
    assert tally(drive).dry_jobs == 2


def test_an_engine_that_restarts_has_no_line() -> None:
    drive = queued()
    drive.now_ms = 2_000.0
    drive.tell(ev.EngineRestarted(W1))
    drive.tell(ev.Prefilled("t0"))
    assert asked(drive) == []


def test_lines_are_bounded_and_hold_a_thread_once() -> None:
    lines = Lines(3)
    for turn in ("a", "b", "c"):
        lines.join(turn, W1, 0.0)
    lines.join("a", W2, 1.0)
    assert [turn.thread for turn in lines.first(W1, 9)] == ["b", "c"]
    lines.join("d", W1, 2.0)
    assert len(lines) == 3
    assert [turn.thread for turn in lines.first(W1, 9)] == ["c", "d"], "the one that was sent longest ago is forgotten"
    assert (lines.leave("a"), lines.leave("a"), lines.first(W2, 9)) == (W2, None, [])
