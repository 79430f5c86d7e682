"""The emulator's engine, whose decode steps are done many at once while nothing happens that they could change.

Between two arrivals, aborts and ends of replies a decode engine's steps follow from each other. A leap goes to the step in
which the first reply ends; whatever comes earlier settles it: the steps that are over by then are counted, the one under way
goes on as usual. Times, pages and counters are those of single steps; only what is said of single tokens is left out.
"""

from __future__ import annotations

import msgspec

from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.request import Cached, EngineRequest


class Leap(msgspec.Struct, frozen=True, gc=False):
    """Steps of equal batches: the first begins at `from_ms` and takes `step_ms`, each further one `slope_ms` more."""

    from_ms: float
    step_ms: float
    slope_ms: float
    steps: int

    def end_ms(self, step: int) -> float:
        """Of the step of this number, from 1 on."""
        return self.from_ms + step * self.step_ms + self.slope_ms * (step * (step - 1) / 2)

    def done(self, now_ms: float) -> int:
        """How many steps are over; never the last, which does more than count."""
        low, high = 0, self.steps - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.end_ms(middle) <= now_ms:
                low = middle
            else:
                high = middle - 1
        return low


class LeapingEngine(EngineModel):
    """For a decode worker without a cache of its own. `settle` is due before its load is asked for."""

    _leap: Leap | None = None

    def submit(self, request: EngineRequest, now_ms: float) -> None:
        self.settle(now_ms)
        super().submit(request, now_ms)

    def receive(self, rid: str, now_ms: float, cached: Cached | None = None) -> None:
        self.settle(now_ms)
        super().receive(rid, now_ms, cached)

    def abort(self, rid: str, now_ms: float) -> bool:
        self.settle(now_ms)
        return super().abort(rid, now_ms)

    def settle(self, now_ms: float) -> None:
        """Count the steps that are over; the one under way is an ordinary one from now on."""
        leap = self._leap
        if leap is not None:
            done = leap.done(now_ms)
            self._leap = None
            self._count(leap, done)
            self._forward_end_ms = leap.end_ms(done + 1)

    def _kick(self, now_ms: float) -> None:
        begun = self._forward_end_ms
        super()._kick(now_ms)
        if begun is None and self._forward_end_ms is not None:
            self._leap = leap = self._plan(now_ms)
            if leap is not None:
                self._forward_end_ms = leap.end_ms(leap.steps)

    def _end_forward(self, now_ms: float) -> None:
        leap, self._leap = self._leap, None
        if leap is not None:
            self._count(leap, leap.steps - 1)
        super()._end_forward(now_ms)

    def _plan(self, now_ms: float) -> Leap | None:
        """From the step that has just begun; None where it ends a reply, or where pages may run out before one ends."""
        running, params = self._running, self.params
        steps = min([live.request.output_tokens - live.output for live in running])
        if steps < 2:
            return None
        page = params.page_tokens
        if sum([-(-(live.computed + steps) // page) - live.private_pages for live in running]) > self.cache.free_pages:
            return None
        step_ms = params.decode_ms(len(running), self._read_tokens())
        slope_ms = params.decode_ms_per_context_token * len(running) / params.speed
        return Leap(now_ms, step_ms, slope_ms, steps)

    def _count(self, leap: Leap, done: int) -> None:
        """As many steps are over, and the next has begun."""
        if not done:
            return
        running, page = self._running, self.params.page_tokens
        for live in running:
            live.computed += done
            live.output += done
            live.grow(self.cache, live.computed + 1, page)
        counters, batch = self.counters, len(running)
        busy_ms = leap.end_ms(done + 1) - leap.end_ms(1)
        counters.generated += batch * done
        counters.decode_steps += done
        counters.decode_running_sum += batch * done
        counters.decode_busy_ms += busy_ms
        counters.decode_square_sum += batch * batch * done
        counters.decode_product_sum += batch * busy_ms
        counters.decode_tokens_per_s = batch / (leap.end_ms(done + 1) - leap.end_ms(done)) * 1000.0
