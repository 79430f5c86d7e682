"""Several workers read from one node, as the ranks of one engine do: what is staged there is for whichever of them gets the
turn."""

from __future__ import annotations

from prefetch_world import TOKEN_BYTES, Drive, World

from costmodel.values import Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import JobState
from kvtier.prefetch.moves import CancelMove, Stage
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, Place

W1, W2 = WorkerKey("w1"), WorkerKey("w2")  # of one node
TOKENS = 1_600


def shared(**params: object) -> Drive:
    world = World(warmable=True, node_of={"2": "n1"})
    world.remote("t", TOKENS, "n3")
    return Drive(Planner(PrefetchParams(**params)), world)  # type: ignore[arg-type]


def test_a_turn_waits_for_what_was_on_its_way_for_the_other_worker() -> None:
    run = shared()
    job = run.planner.new_job()
    run.tell(ev.Asked(job, "t", 60_000.0, W1))
    run.tell(ev.Held("t", W2))
    assert run.planner.fetches("t", W2, run.now_ms)
    (move,) = run.stages
    run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    assert run.planner.take_released(run.now_ms) == [W2]
    run.tell(ev.Sent("t", W2))
    run.tell(ev.Served("t", W2, TOKENS))
    ended = run.planner.job(job)
    assert ended is not None
    assert (ended.state, ended.worker) == (JobState.CONSUMED, W2)


def test_pages_are_read_again_by_the_worker_that_has_the_turn() -> None:
    run = shared(recall_turns=1)
    run.world.queue_ms["2"] = 9_000.0
    run.tell(ev.Asked(run.planner.new_job(), "t", 60_000.0, W1))
    (move,) = run.stages
    run.tell(ev.MoveEnded(move, run.stages.pop(move).size_bytes))
    for turn in ("done", "computed", "t"):
        run.world.extents.setdefault(turn, (Extent(0, 16, engine=Tier.L1),))
        run.world.prompts.setdefault(turn, 1_000)
        run.tell(ev.Sent(turn, W2))
    run.world.extents["t"] = (Extent(0, 16, engine=Tier.L1), Extent(16, TOKENS - 16, (Place("n1", Tier.L3),)))
    run.world.extents["computed"] = (Extent(0, 16, engine=Tier.L1), Extent(16, 800, (Place("n1", Tier.L3),)))
    run.warms.clear()
    run.now_ms = 2_000.0
    run.tell(ev.Prefilled("done"))
    assert [(warm.subject, warm.worker, warm.start, warm.tokens) for warm in run.warms.values()] == [("t", W2, 16, TOKENS)]


def test_what_was_warmed_for_the_other_worker_was_for_nothing() -> None:
    run = shared()
    run.tell(ev.Asked(run.planner.new_job(), "t", 60_000.0, W1))
    for _ in range(2):
        for move in sorted((*run.stages, *run.warms)):
            told = run.stages.pop(move, None) or run.warms.pop(move)
            run.tell(ev.MoveEnded(move, told.size_bytes))
    tally = run.planner.tallies[Trigger.EXPLICIT]
    assert (tally.warmed_bytes, tally.warm_wasted_bytes) == (TOKENS * TOKEN_BYTES, 0)
    run.tell(ev.Sent("t", W2))
    run.tell(ev.Served("t", W2, TOKENS))
    assert (tally.useful_bytes, tally.warm_wasted_bytes) == (TOKENS * TOKEN_BYTES, TOKENS * TOKEN_BYTES)


def test_where_a_warm_request_was_all_the_turn_has_gone_elsewhere() -> None:
    run = shared()
    run.world.extents["t"] = (Extent(0, TOKENS, (Place("n1", Tier.L3),)),)
    job = run.planner.new_job()
    run.tell(ev.Asked(job, "t", 60_000.0, W1))
    assert [type(move) for move in run.log if isinstance(move, Stage)] == []
    (warm,) = run.warms
    moves = run.tell(ev.Sent("t", W2))
    assert CancelMove(warm) in moves
    ended = run.planner.job(job)
    assert ended is not None
    assert ended.state is JobState.CANCELLED
