"""Feed: each transition by hand; the property tests have the mixtures."""

from __future__ import annotations

from costmodel.values import Tier, WorkerKey
from kvtier.index.events import BlocksStored
from kvtier.index.feed import MAX_FRUITLESS_REPLAYS, Feed, FeedState, Replay, Step, Verdict
from kvtier.index.memory import BlockIndex
from kvtier.index.project import project
from kvtier.index.runs import BlockRun

SOURCE = WorkerKey("p0")


def live_feed(last: int, epoch: str | None = None) -> Feed:
    """A feed that has applied batches 0..last, batch n stamped 100 + n."""
    feed = Feed(can_replay=True)
    ticket = asked(feed.connected(epoch)).ticket
    assert feed.replay_ended(ticket).trusted
    for seq in range(last + 1):
        assert feed.accept(epoch, seq, 100.0 + seq).verdict is Verdict.APPLY
    return feed


def asked(step: Step) -> Replay:
    assert step.replay is not None
    return step.replay


def test_first_contact_replays_from_the_start() -> None:
    feed = Feed(can_replay=True)
    replay = asked(feed.connected())
    assert (replay.from_seq, feed.state) == (0, FeedState.REPLAYING)
    assert feed.accept(None, 3, 103.0) == Step(Verdict.GAP, trusted=False)
    for seq in range(4):
        assert feed.replayed(replay.ticket, seq, 100.0 + seq) == Step(Verdict.APPLY, trusted=False)
    assert feed.replay_ended(replay.ticket) == Step(None, trusted=True)
    assert (feed.state, feed.cursor, feed.partial) == (FeedState.LIVE, 3, False)


def test_a_duplicate_is_dropped() -> None:
    feed = live_feed(3)
    assert feed.accept(None, 2, 102.0) == Step(Verdict.DUPLICATE, trusted=True)
    assert feed.cursor == 3


def test_a_gap_is_replayed_from_the_cursor() -> None:
    feed = live_feed(3)
    step = feed.accept(None, 6, 106.0)
    assert (step.verdict, step.trusted, asked(step).from_seq) == (Verdict.GAP, False, 3)
    ticket = asked(step).ticket
    assert feed.replayed(ticket, 3, 103.0).verdict is Verdict.DUPLICATE
    assert [feed.replayed(ticket, seq, 100.0 + seq).verdict for seq in (4, 5, 6)] == [Verdict.APPLY] * 3
    assert feed.replay_ended(ticket).trusted
    assert feed.gaps == 1


def test_live_batches_that_continue_the_replay_are_applied_and_end_it() -> None:
    feed = live_feed(3)
    ticket = asked(feed.accept(None, 5, 105.0)).ticket
    feed.accept(None, 6, 106.0)
    feed.replayed(ticket, 3, 103.0)
    feed.replayed(ticket, 4, 104.0)
    feed.replayed(ticket, 5, 105.0)
    assert feed.accept(None, 6, 106.0) == Step(Verdict.APPLY, trusted=True)
    assert feed.replayed(ticket, 6, 106.0).verdict is Verdict.DUPLICATE
    assert feed.replay_ended(ticket) == Step(None, trusted=True)


def test_a_replay_that_was_overtaken_is_asked_for_again() -> None:
    feed = live_feed(3)
    first = asked(feed.accept(None, 5, 105.0))
    feed.replayed(first.ticket, 3, 103.0)
    feed.replayed(first.ticket, 4, 104.0)
    feed.accept(None, 9, 109.0)
    second = asked(feed.replay_ended(first.ticket))
    assert second.from_seq == 4
    assert feed.replayed(first.ticket, 5, 105.0).verdict is Verdict.DUPLICATE, "superseded"


def test_history_that_the_engine_no_longer_has_is_dropped() -> None:
    feed = live_feed(3)
    ticket = asked(feed.accept(None, 900, 1000.0)).ticket
    assert feed.replayed(ticket, 500, 600.0) == Step(Verdict.APPLY, trusted=False, clear=True)
    assert feed.partial
    for seq in range(501, 901):
        feed.replayed(ticket, seq, 100.0 + seq)
    assert feed.replay_ended(ticket).trusted


def test_replays_that_bring_nothing_end_in_a_fresh_start() -> None:
    feed = Feed(can_replay=True)
    step = feed.connected()
    for attempt in range(MAX_FRUITLESS_REPLAYS):
        feed.accept(None, 7 + attempt, 107.0 + attempt)
        step = feed.replay_ended(asked(step).ticket)
    assert step == Step(None, trusted=False, clear=True)
    assert feed.accept(None, 20, 120.0) == Step(Verdict.APPLY, trusted=True, clear=True)
    assert feed.partial


def test_without_replay_a_gap_empties_and_starts_over() -> None:
    feed = Feed(can_replay=False)
    assert feed.connected() == Step(None, trusted=False, clear=True)
    assert feed.accept(None, 40, 140.0) == Step(Verdict.APPLY, trusted=True, clear=True)
    assert feed.accept(None, 41, 141.0) == Step(Verdict.APPLY, trusted=True)
    assert feed.accept(None, 43, 143.0) == Step(Verdict.APPLY, trusted=True, clear=True)


def test_a_failed_replay_empties() -> None:
    feed = live_feed(3)
    ticket = asked(feed.accept(None, 6, 106.0)).ticket
    assert feed.replay_failed(ticket) == Step(None, trusted=False, clear=True)
    assert feed.replay_failed(ticket) == Step(None, trusted=False), "only once"
    assert feed.accept(None, 7, 107.0) == Step(Verdict.APPLY, trusted=True, clear=True)


def test_a_revived_source_always_resyncs() -> None:
    feed = live_feed(3)
    assert feed.disconnected() == Step(None, trusted=False)
    step = feed.accept(None, 4, 104.0)  # the very next number, and still not believed
    assert (step.verdict, asked(step).from_seq) == (Verdict.GAP, 3)


def test_a_reconnect_to_the_same_life_keeps_what_is_held() -> None:
    feed = live_feed(3)
    feed.disconnected()
    step = feed.connected()
    ticket = asked(step).ticket
    assert not step.clear
    assert not feed.replayed(ticket, 3, 103.0).clear
    assert feed.replay_ended(ticket) == Step(None, trusted=True)


def test_another_batch_at_the_cursor_is_another_life() -> None:
    feed = live_feed(3)
    feed.disconnected()
    ticket = asked(feed.connected()).ticket
    step = feed.replayed(ticket, 3, 999.0)
    assert (step.clear, asked(step).from_seq, feed.restarts) == (True, 0, 1)


def test_an_engine_that_has_not_got_so_far_is_another_life() -> None:
    feed = live_feed(3)
    feed.disconnected()
    step = feed.replay_ended(asked(feed.connected()).ticket)
    assert (step.clear, asked(step).from_seq) == (True, 0)
    assert feed.replay_ended(asked(step).ticket) == Step(None, trusted=True)


def test_a_new_epoch_clears() -> None:
    feed = live_feed(3, "e1")
    assert feed.accept("e2", 0, 200.0) == Step(Verdict.APPLY, trusted=True, clear=True)
    assert feed.accept("e2", 1, 201.0) == Step(Verdict.APPLY, trusted=True)


def test_a_new_epoch_whose_first_batches_were_missed_is_replayed_from_its_start() -> None:
    feed = live_feed(3, "e1")
    step = feed.accept("e2", 4, 204.0)  # the number would fit
    assert (step.verdict, step.clear, asked(step).from_seq) == (Verdict.GAP, True, 0)


def test_late_batches_of_an_old_epoch_are_nothing() -> None:
    feed = live_feed(3, "e1")
    feed.accept("e2", 0, 200.0)
    assert feed.accept("e1", 4, 104.0) == Step(Verdict.DUPLICATE, trusted=True)
    assert feed.accept("e1", 0, 100.0) == Step(Verdict.DUPLICATE, trusted=True)
    assert feed.accept("e2", 1, 201.0) == Step(Verdict.APPLY, trusted=True)
    assert feed.restarts == 1


def test_without_epochs_a_later_stamp_on_an_old_number_is_a_restart() -> None:
    feed = live_feed(9)
    step = feed.accept(None, 2, 500.0)
    assert (step.verdict, step.clear, asked(step).from_seq) == (Verdict.GAP, True, 0)


def test_without_epochs_number_zero_is_a_restart_even_unstamped() -> None:
    feed = live_feed(9)
    step = feed.accept(None, 0)
    assert (step.clear, asked(step).from_seq) == (True, 0)


def test_an_epoch_forgotten_by_the_replay_is_still_accepted() -> None:
    """The engine's buffer came back empty, but it is the same engine."""
    feed = live_feed(3, "e1")
    step = feed.replay_ended(asked(feed.accept("e1", 6, 106.0)).ticket)
    assert step.clear
    feed.replay_failed(asked(step).ticket)
    assert feed.accept("e1", 7, 107.0) == Step(Verdict.APPLY, trusted=True, clear=True)


def snapshotting_feed(*, can_replay: bool = True) -> Feed:
    return Feed(can_replay=can_replay, can_snapshot=True)


def test_a_replay_that_starts_behind_a_hole_gives_way_to_a_snapshot() -> None:
    feed = snapshotting_feed()
    step = feed.replayed(asked(feed.connected()).ticket, 500, 600.0)
    assert (step.verdict, step.clear, step.replay, step.trusted) == (Verdict.GAP, True, None, False)
    assert step.snapshot is not None
    assert feed.snapshotted(step.snapshot.ticket, "e1", 900) == Step(Verdict.APPLY, trusted=True, clear=True)
    assert feed.accept("e1", 900, 900.0).verdict is Verdict.DUPLICATE
    assert feed.accept("e1", 901, 901.0) == Step(Verdict.APPLY, trusted=True)
    assert not feed.partial


def test_batches_that_came_while_a_snapshot_was_made_are_fetched_after_it() -> None:
    feed = snapshotting_feed()
    step = feed.replay_failed(asked(feed.connected()).ticket)
    assert step.snapshot is not None
    assert feed.accept("e1", 12, 12.0) == Step(Verdict.GAP, trusted=False)
    after = feed.snapshotted(step.snapshot.ticket, "e1", 10)
    assert (after.verdict, after.trusted, asked(after).from_seq) == (Verdict.APPLY, False, 10)


def test_without_replay_an_overtaken_snapshot_is_taken_again_a_few_times() -> None:
    feed = snapshotting_feed(can_replay=False)
    step = feed.connected()
    for attempt in range(MAX_FRUITLESS_REPLAYS):
        assert step.snapshot is not None
        feed.accept("e1", 12 + attempt, 12.0)
        step = feed.snapshotted(step.snapshot.ticket, "e1", 10 + attempt)
    assert step == Step(None, trusted=False, clear=True)
    assert feed.accept("e1", 99, 99.0) == Step(Verdict.APPLY, trusted=True, clear=True)


def test_a_snapshot_of_a_life_that_is_over_is_refused() -> None:
    feed = snapshotting_feed()
    feed.accept("e1", 0, 1.0)
    feed.connected("e1")
    feed.accept("e2", 0, 2.0)
    step = feed.replay_failed(asked(feed.connected("e2")).ticket)
    assert step.snapshot is not None
    assert feed.snapshotted(step.snapshot.ticket, "e1", 3) == Step(None, trusted=False, clear=True)


def test_a_superseded_snapshot_is_nothing() -> None:
    feed = snapshotting_feed()
    step = feed.replay_failed(asked(feed.connected()).ticket)
    assert step.snapshot is not None
    feed.disconnected()
    assert feed.snapshotted(step.snapshot.ticket, "e1", 3).verdict is Verdict.DUPLICATE


def test_a_straggler_of_an_old_life_does_not_end_the_new_one_for_good() -> None:
    feed = live_feed(3, "e1")
    feed.accept("e3", 0, 300.0)
    assert feed.accept("e2", 0, 200.0).clear, "an epoch never seen is a restart"
    assert feed.accept("e3", 1, 301.0).clear, "its stamp is the newest of all"
    assert feed.accept("e2", 1, 201.0).verdict is Verdict.DUPLICATE


def test_project_empties_before_it_applies_and_trusts_last() -> None:
    index = BlockIndex(max_entries=1024, max_sources=2)
    index.apply(SOURCE, BlocksStored((1, 2), None, Tier.L1, 16), 0.0)
    fresh = [BlocksStored((1,), None, Tier.L2, 16)]
    assert project(index, SOURCE, Step(Verdict.APPLY, trusted=False, clear=True, replay=Replay(0, 1)), fresh, 1.0) == Replay(
        0, 1
    )
    assert index.match((1, 2), 1.0) == {}
    assert project(index, SOURCE, Step(None, trusted=True), (), 1.0) is None
    assert index.match((1, 2), 1.0)[SOURCE].runs == (BlockRun(0, 1, Tier.L2),)
    project(index, SOURCE, Step(Verdict.DUPLICATE, trusted=True), [BlocksStored((2,), None, Tier.L2, 16)], 1.0)
    assert index.match((1, 2), 1.0)[SOURCE].blocks == 1
