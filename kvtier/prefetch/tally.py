"""What prefetch has done, by trigger. Plain sums that only grow."""

from __future__ import annotations

from collections import Counter

import msgspec

from kvtier.prefetch.job import Job, JobState


class Tally(msgspec.Struct):
    """Useful plus wasted bytes are the moved bytes of all jobs that have ended."""

    planned_bytes: int = 0
    moved_bytes: int = 0
    useful_bytes: int = 0  # moved, and there when a turn used them
    wasted_bytes: int = 0  # moved for nothing
    late_bytes: int = 0  # planned, and not there when the turn was sent
    warmed_bytes: int = 0  # brought to L1 by warm requests
    warm_wasted_bytes: int = 0  # of these, of jobs that nobody used
    recalled_bytes: int = 0  # that engines were asked to read from L3 again
    recall_wasted_bytes: int = 0  # of these, that the turn did not restore
    saved_ms: float = 0.0  # of turns that used what was staged, as predicted
    added_ms: float = 0.0  # what jobs cost that nobody used, as predicted
    dry_jobs: int = 0  # that a dry run would have begun
    dry_bytes: int = 0
    jobs: Counter[JobState] = msgspec.field(default_factory=Counter)  # by their end

    def recalled(self, job: Job) -> None:
        self.recalled_bytes += int(job.recalled_tokens * job.bytes_per_token)
        self.recall_wasted_bytes += int((job.recalled_tokens - job.recall_useful_tokens) * job.bytes_per_token)

    def ended(self, job: Job, useful_bytes: int) -> None:
        useful = min(useful_bytes, job.moved_bytes)
        self.useful_bytes += useful
        self.wasted_bytes += job.moved_bytes - useful
        self.jobs[job.state] += 1
        if job.state is not JobState.CONSUMED:
            self.warm_wasted_bytes += job.warmed_bytes
        if job.state is JobState.CONSUMED:
            self.saved_ms += job.saved_ms * (min(1.0, useful / job.planned_bytes) if job.planned_bytes else 1.0)
        elif job.moved_bytes or job.warmed_tokens:
            self.added_ms += job.cost_ms
