"""Turns in an engine's queue whose pages have left L2: read from L3 again just before it is their turn.

SGLang reads from L3 when a request comes, wherever it then stands in the queue (`_add_request_to_queue`), puts what came into
the tree, where it may be evicted, and matches the tree anew when the request's turn has come. Another request of the same
tokens makes it read again. That one is taken back when the turn's prefill is over, so that it computes nothing.

A turn leaves our line when its first token is out. Before that the engine has computed it and sends its KV to decode, while it
computes the next: neither needs what could be read.
"""

from __future__ import annotations

from itertools import takewhile

from costmodel.terms import compute_ms
from costmodel.values import Tier, WorkerKey
from kvtier.prefetch.board import Board
from kvtier.prefetch.events import Trigger
from kvtier.prefetch.job import Job, JobState
from kvtier.prefetch.lines import InLine, Lines
from kvtier.prefetch.moves import Warm
from kvtier.prefetch.opening import Opening
from kvtier.prefetch.params import Mode
from kvtier.prefetch.view import Place, Target, View

_MAX_BEGUN = 16  # turns of one worker that are computed or being sent at once


class Recall:
    def __init__(self, board: Board, opening: Opening, lines: Lines) -> None:
        self._board = board
        self._opening = opening
        self._lines = lines

    def advance(self, worker: WorkerKey, view: View, now_ms: float) -> list[Job]:
        """The line of this worker has moved: look at those in front of it. The jobs that were begun."""
        params = self._board.params
        if params.mode is Mode.OFF or Trigger.DECISION not in params.triggers:
            return []
        waiting = self._waiting(worker, view)
        old = [turn for turn in waiting if not turn.recalled and now_ms - turn.sent_ms >= params.recall_after_ms]
        jobs = [self._look_at(turn, worker, view, now_ms) for turn in old]
        return [job for job in jobs if job is not None]

    def _waiting(self, worker: WorkerKey, view: View) -> list[InLine]:
        """Those behind the first whose prompt is not all in L1 yet: that one is being computed."""
        count = self._board.params.recall_turns
        line = self._lines.first(worker, _MAX_BEGUN + count)
        begun = 1 + sum(1 for _ in takewhile(lambda turn: _is_computed(turn, worker, view), line))
        return line[begun : begun + count]

    def _look_at(self, turn: InLine, worker: WorkerKey, view: View, now_ms: float) -> Job | None:
        target = view.target(turn.thread, worker)
        if target is None or not target.warmable:
            return None
        held, end = in_l3(target)
        saved_ms = compute_ms(target.rates, target.prompt_tokens, held) - compute_ms(target.rates, target.prompt_tokens, end)
        if end - held < self._board.params.recall_tokens or saved_ms < self._board.params.min_saved_ms:
            return None
        if self._board.params.mode is Mode.DRY_RUN:
            turn.recalled = True
            self._board.tallies[Trigger.DECISION].dry_jobs += 1
            return None
        job = self._board.of_subject(turn.thread) or self._opening.sent(turn.thread, target, end, now_ms)
        if job is None or not job.sent or job.state is not JobState.READY or job.warm_move is not None:
            return None
        turn.recalled = True
        self._read_again(job, held, end)
        job.saved_ms += saved_ms
        return job

    def _read_again(self, job: Job, held: int, end: int) -> None:
        job.recalled_from, job.recalled_tokens = held, end - held
        size = int(job.recalled_tokens * job.bytes_per_token)
        job.warm_move = self._board.new_move(job)
        self._board.moves.append(Warm(job.warm_move, job.id, job.subject, job.worker, end, size, job.expires_ms, held))


def _is_computed(turn: InLine, worker: WorkerKey, view: View) -> bool:
    if not turn.computed:
        target = view.target(turn.thread, worker)
        turn.computed = target is not None and _in_l1(target) > target.named_tokens - target.page_tokens
    return turn.computed


def _in_l1(target: Target) -> int:
    """Its leading tokens."""
    return sum(extent.tokens for extent in takewhile(lambda extent: extent.engine is Tier.L1, target.extents))


def in_l3(target: Target) -> tuple[int, int]:
    """From which token on the prompt lies in L3 alone, and up to which the engine would find it there."""
    held = end = 0
    for extent in target.extents:
        if extent.engine is not None:
            held = end + extent.tokens if held == end else held
        elif not any(target.reads_remote or place == Place(target.node, Tier.L3) for place in extent.places):
            break
        end += extent.tokens
    return held, end
