"""The emulated engine itself: queues, batching, chunked prefill, caches and timing, in virtual time.

Every call brings the time; nothing here reads a clock, sleeps or does I/O, so a server drives it by the wall clock and a
simulator as fast as it likes. The scheduling rules follow SGLang 0.5.23 (srt/managers/scheduler.py, schedule_policy.py,
disaggregation/prefill.py and decode.py): one forward at a time, prefill before decode, first come first served, chunks of one
request at a time, retraction of the request with the shortest output when decode runs out of pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from engine_adapters.emulator.model.live_request import LiveRequest, Stage
from engine_adapters.emulator.model.load import EngineLoad, LoadCounters, QueueLoad
from engine_adapters.emulator.model.page_cache import Match, PageCache
from engine_adapters.emulator.model.page_events import PageEvent
from engine_adapters.emulator.model.page_node import PageNode
from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.model.pool import Done, Pool
from engine_adapters.emulator.model.request import (
    Allocated,
    Cached,
    EngineRequest,
    Finished,
    FinishReason,
    Outcome,
    Progress,
    Transferred,
)
from engine_adapters.emulator.model.timers import Lane, Timers


class EngineModel:
    """One engine. `submit`, `abort`, `pair` and `receive` are its inputs; what comes of them is returned by the next `advance`,
    which is therefore due right after each of them and at `next_event_ms`.

    `pool` is a shared tier behind the host's; without one there is none. What it calls back is an input like the others.
    Raises ValueError for a request that could never run (more tokens than the device holds) and for a rid in use.
    """

    def __init__(self, params: EngineParams, pool: Pool | None = None) -> None:
        self.params = params
        self._pool = pool
        page = params.page_tokens
        self.cache = PageCache(params.kv_tokens // page, params.host_kv_tokens // page, page)
        self.counters = LoadCounters()
        self._live: dict[str, LiveRequest] = {}
        self._waiting: deque[LiveRequest] = deque()
        self._prealloc: deque[LiveRequest] = deque()
        self._running: list[LiveRequest] = []
        self._chunked: LiveRequest | None = None
        self._batch: list[LiveRequest] = []  # prefill batch of the current forward; empty during a decode step
        self._forward_end_ms: float | None = None
        self._timers = Timers()
        self._host_lane = Lane()
        self._transfer_lane = Lane()
        self._events_due = False
        self._outcomes: list[Outcome] = []

    def __contains__(self, rid: str) -> bool:
        return rid in self._live

    @property
    def idle(self) -> bool:
        return not self._live

    def stage(self, rid: str) -> Stage:
        """Where a request stands; GONE when it is not here."""
        live = self._live.get(rid)
        return Stage.GONE if live is None else live.stage

    def submit(self, request: EngineRequest, now_ms: float) -> None:
        """Take a request. Paired requests wait for `pair` (prefill engine) or `receive` (decode engine)."""
        if request.rid in self._live:
            raise ValueError(f"rid {request.rid} is in use")
        capacity = self.cache.device_capacity * self.params.page_tokens
        if request.prompt_tokens >= capacity:
            raise ValueError(f"{request.prompt_tokens} prompt tokens do not fit into {capacity} tokens of KV cache")
        stage, queue = self._entry(request)
        live = LiveRequest(request, stage, now_ms)
        self._live[request.rid] = live
        if queue is not None:
            queue.append(live)
        if stage is Stage.WAITING:
            self._fetch(live, now_ms)
        self._kick(now_ms)

    def pair(self, rid: str, now_ms: float, resident_tokens: int = 0) -> None:
        """A prefill engine hears that the decode engine has room for `rid`. Unknown rids are ignored: they were aborted."""
        live = self._live.get(rid)
        if live is not None and live.stage is Stage.BOOTSTRAP:
            live.peer_resident = resident_tokens
            live.stage = Stage.WAITING
            self._waiting.append(live)
            self._fetch(live, now_ms)
            self._kick(now_ms)

    def receive(self, rid: str, now_ms: float, cached: Cached | None = None) -> None:
        """A decode engine has got all KV of `rid` and its first token; `cached` is what the prefill engine did not compute."""
        live = self._live.get(rid)
        if live is None or live.stage is not Stage.RECEIVING:
            return
        if cached is not None:  # the reply tells whichever half had more (decode_schedule_batch_mixin.py)
            own = live.tree_pages * self.params.page_tokens
            live.cached = Cached(cached.device + max(0, own - cached.tokens), cached.host, cached.storage)
        live.computed = live.fill_tokens
        live.stage = Stage.WAITING
        self._waiting.append(live)
        self._kick(now_ms)

    def abort(self, rid: str, now_ms: float) -> bool:
        """Drop a request wherever it stands; False when it is not here. A step that computes it still takes its time."""
        live = self._live.get(rid)
        if live is None:
            return False
        queued = live.stage is Stage.WAITING or self._chunked is live
        self._unqueue(live)
        keep = live.stage is Stage.RUNNING and live.request.keep and self.params.keeps_cache
        if keep:
            live.commit(self.cache, live.computed, self.params.page_tokens)
        self._finish(live, now_ms, FinishReason.ABORT_QUEUED if queued else FinishReason.ABORT)
        self._start_backups(now_ms)
        self._kick(now_ms)
        return True

    def flush(self) -> bool:
        """Empty the cache; refused while any request is here, as SGLang does."""
        if not self.idle:
            return False
        self.cache.clear()
        if not self.params.keeps_cache:
            self.cache.take_events()  # an engine without a cache announces nothing
        return True

    def next_event_ms(self) -> float | None:
        """When `advance` has something to do; None while idle."""
        due = [at_ms for at_ms in (self._forward_end_ms, self._timers.next_ms) if at_ms is not None]
        return min(due, default=None)

    def advance(self, now_ms: float) -> list[Outcome]:
        """Do everything due by `now_ms` in order of its time; what happened since the last call, oldest first."""
        while (due := self.next_event_ms()) is not None and due <= now_ms:
            if self._timers.next_ms == due:
                self._timers.run_next()
            else:
                self._end_forward(due)
        taken, self._outcomes = self._outcomes, []
        return taken

    def take_page_events(self) -> list[PageEvent]:
        """What the engine would publish now. SGLang publishes after a prefill, every so many decode steps, and when idle."""
        if not self._events_due and self._forward_end_ms is not None:
            return []
        self._events_due = False
        return self.cache.take_events()

    def load(self) -> EngineLoad:
        """The queues as they stand; counters are cumulative."""
        queues: dict[Stage, QueueLoad] = {}
        for live in self._live.values():
            known = queues.get(live.stage, QueueLoad())
            queues[live.stage] = QueueLoad(known.requests + 1, known.tokens + live.fill_tokens)
        chunked = self._chunked
        return EngineLoad(
            running=len(self._running),
            queues=queues,
            retracted=sum(1 for live in self._prealloc if live.output),
            chunk_left_tokens=chunked.fill_tokens - chunked.computed if chunked is not None else 0,
            held_tokens=(self.cache.private_pages + self.cache.locked_pages) * self.params.page_tokens,
            counters=self.counters,
        )

    def _entry(self, request: EngineRequest) -> tuple[Stage, deque[LiveRequest] | None]:
        if request.paired and self.params.role is EngineRole.PREFILL:
            return Stage.BOOTSTRAP, None
        if self.params.role is EngineRole.DECODE:
            return Stage.PREALLOC, self._prealloc
        return Stage.WAITING, self._waiting

    def _unqueue(self, live: LiveRequest) -> None:
        for queue in (self._waiting, self._prealloc, self._running):
            if live in queue:
                queue.remove(live)
        if live in self._batch:
            self._batch = [other for other in self._batch if other is not live] or [_GHOST]
        if self._chunked is live:
            self._chunked = None

    def _kick(self, now_ms: float) -> None:
        """Start the next forward if none runs."""
        self._preallocate(now_ms)
        if self._forward_end_ms is not None:
            return
        if self.params.role is EngineRole.DECODE:
            self._admit_received(now_ms)
        else:
            spans, load_back = self._compose_prefill()
            if spans:
                copying = self.params.load_back_ms(load_back) if load_back else 0.0
                duration = max(self.params.prefill_ms(spans) + self.params.load_back_compute_share * copying, copying)
                self.counters.prefilled(sum(end - start for start, end in spans), duration)
                self._forward_end_ms = now_ms + duration
                self._start_backups(now_ms)
                return
        if self._running and self._grow_running(now_ms) and self._forward_end_ms is None:
            duration = self.params.decode_ms(len(self._running), self._read_tokens())
            self.counters.decoded(len(self._running), duration)
            self._forward_end_ms = now_ms + duration

    def _fetch(self, live: LiveRequest, now_ms: float) -> None:
        """Read from the shared pool what it has of the prompt beyond device and host, as SGLang does when a request comes.

        The request waits until all of it is there (`wait_complete`).
        """
        pool, page, request = self._pool, self.params.page_tokens, live.request
        if pool is None:
            return
        pages = request.pages[: (live.fill_tokens - 1) // page]
        match = self.cache.match(pages, request.namespace)
        held, least = match.device_pages + match.host_pages, -(-self.params.pool_threshold_tokens // page)
        if len(pages) - held < least:
            return
        end = self._fetch_end(live, pages, held, match.node)
        reading = pool.read(pages[held:], request.namespace, least, now_ms, end)
        if reading is not None and not reading.pages:
            return
        self.cache.lock(match.node)
        live.fetching = True
        if reading is not None:
            self._timers.at(reading.done_ms, lambda at_ms: end(reading.pages, at_ms))

    def _fetch_end(self, live: LiveRequest, pages: Sequence[int], held: int, node: PageNode) -> Done:
        life = self.cache.life

        def end(count: int, now_ms: float) -> None:
            live.fetching = False
            if life == self.cache.life:
                self.cache.unlock(node)
                wanted = pages[: held + count]
                live.fetched = self.cache.insert_host(wanted, live.request.namespace) * self.params.page_tokens if count else 0
            self._kick(now_ms)

        return end

    def _compose_prefill(self) -> tuple[list[tuple[int, int]], int]:
        """Choose the next prefill batch; its (start, end) token spans and how many tokens come back from the host."""
        budget = min(self.params.chunk_tokens, self.params.max_prefill_tokens)
        spans: list[tuple[int, int]] = []
        load_back = 0
        self._batch = []
        if self._chunked is not None:
            live, self._chunked = self._chunked, None
            if self._add_span(live, spans, budget):
                budget -= live.pending_new
            else:
                self._chunked = live
                return spans, 0
        while self._waiting and budget > 0 and self._chunked is None:
            if len(self._running) + len(self._batch) >= self.params.max_running:
                break
            ready = next((waiting for waiting in self._waiting if not waiting.fetching), None)
            if ready is None:
                break
            restored = self._admit(ready)
            if restored is None or not self._add_span(ready, spans, budget):
                if restored is not None:
                    self._give_back(ready)
                break
            load_back += restored
            self._waiting.remove(ready)
            ready.stage = Stage.PREFILLING
            budget -= ready.pending_new
        return spans, load_back

    def _admit(self, live: LiveRequest) -> int | None:
        """Match the cache and check room; tokens to load back from the host, or None when it has to wait."""
        request, page = live.request, self.params.page_tokens
        limit = (live.fill_tokens - 1) // page  # at least one token is computed
        match = self.cache.match(request.pages[:limit], request.namespace)
        reserve = min(request.max_new_tokens, self.params.admission_output_clip) * self.params.admission_output_ratio
        running = sum(self._expected_growth(other) for other in (*self._running, *self._batch))
        locked_anew = match.device_pages - _locked_depth(match.device_node)
        need = (live.fill_tokens + reserve) / page - match.device_pages + locked_anew + running / page
        alone = not self._running and not self._batch
        if need > self.cache.reclaimable_pages and not alone:
            return None
        live.hold(self.cache, match.device_node, match.device_pages)
        live.computed = match.device_pages * page
        restored = self._restore(live, match)
        if live.output == 0:
            stored = min(live.fetched, restored)
            live.cached = Cached(match.device_pages * page, restored - stored, stored)
            self.counters.looked_up(live.fill_tokens, live.cached)
            self.counters.loaded_back_tokens += restored
        return restored

    def _expected_growth(self, live: LiveRequest) -> float:
        left = min(live.request.max_new_tokens - live.output, self.params.admission_output_clip)
        return max(left, 0) * self.params.admission_output_ratio

    def _restore(self, live: LiveRequest, match: Match) -> int:
        """Load the host part of a match back if it is worth it and fits; how many tokens."""
        page = self.params.page_tokens
        if match.host_pages * page < self.params.load_back_threshold_tokens:
            return 0
        self.cache.lock(match.node)
        if self.cache.reserve(match.host_pages):
            self.cache.load_back(match)
            live.hold(self.cache, match.node, match.device_pages + match.host_pages)
            live.computed = live.tree_pages * page
            restored = match.host_pages * page
        else:
            restored = 0
        self.cache.unlock(match.node)
        return restored

    def _add_span(self, live: LiveRequest, spans: list[tuple[int, int]], budget: int) -> bool:
        """Put the next chunk of `live` into the batch being composed; False when there is no room for it."""
        page = self.params.page_tokens
        missing = live.fill_tokens - live.computed
        new = missing if missing <= budget else budget // page * page
        if new <= 0 or not live.grow(self.cache, live.computed + new, page):
            return False
        live.pending_new = new
        spans.append((live.computed, live.computed + new))
        self._batch.append(live)
        if new < missing:
            self._chunked = live
        return True

    def _give_back(self, live: LiveRequest) -> None:
        live.release(self.cache)
        live.computed = 0

    def _end_forward(self, now_ms: float) -> None:
        self._forward_end_ms = None
        if self._batch:
            self._events_due = True
            batch, self._batch = self._batch, []
            for live in batch:
                if live is not _GHOST:
                    self._end_chunk(live, now_ms)
        else:
            for live in list(self._running):
                live.computed += 1
                self._say(live, now_ms)
            self._events_due |= self.counters.decode_steps % self.params.publish_decode_steps == 0
        self._start_backups(now_ms)
        self._kick(now_ms)

    def _end_chunk(self, live: LiveRequest, now_ms: float) -> None:
        live.computed += live.pending_new
        live.pending_new = 0
        if live.request.keep:
            live.commit(self.cache, live.computed, self.params.page_tokens)
        if self._chunked is live:
            return
        if self.params.role is EngineRole.PREFILL:
            self._send(live, now_ms)
            return
        live.stage = Stage.RUNNING
        self._running.append(live)
        self._say(live, now_ms)

    def _say(self, live: LiveRequest, now_ms: float) -> None:
        """One more token of the reply exists."""
        live.output += 1
        self.counters.generated += 1
        self._outcomes.append(Progress(live.request.rid, now_ms, live.output, live.cached))
        if live.output >= live.request.output_tokens:
            self._running.remove(live)
            if live.request.keep and self.params.keeps_cache:
                live.commit(self.cache, live.computed, self.params.page_tokens)
            self._finish(live, now_ms, FinishReason.DONE)

    def _send(self, live: LiveRequest, now_ms: float) -> None:
        """Prefill engine: KV goes to the decode engine over one link, in order."""
        live.stage = Stage.SENDING
        live.output = 1
        paired = live.request.paired
        tokens = live.request.prompt_tokens - live.peer_resident if paired else 0
        duration = self.params.transfer_ms(max(tokens, 0)) if paired else 0.0
        if paired:
            self.counters.transferred(max(tokens, 0) * self.params.kv_bytes_per_token, duration)
        self._timers.at(self._transfer_lane.take(now_ms, duration), lambda at_ms: self._sent(live, at_ms))

    def _sent(self, live: LiveRequest, now_ms: float) -> None:
        if live.stage is not Stage.SENDING:
            return
        rid = live.request.rid
        self._outcomes.append(Progress(rid, now_ms, 1, live.cached))
        if live.request.paired:
            self._outcomes.append(Transferred(rid, now_ms, live.cached))
        self._finish(live, now_ms, FinishReason.DONE)
        self._kick(now_ms)

    def _preallocate(self, now_ms: float) -> None:
        """Decode engine: accept requests in order while there is room for their prompt and a reserve for each running one."""
        page = self.params.page_tokens
        while self._prealloc:
            live = self._prealloc[0]
            request = live.request
            busy = sum(1 for other in self._live.values() if other.stage in _ON_DECODE)
            if busy >= self.params.max_running:
                return
            reserve = (busy + 1) * self.params.decode_reserved_tokens
            match = self.cache.match(request.pages[: live.fill_tokens // page], request.namespace)
            locked_anew = match.device_pages - _locked_depth(match.device_node)
            need = (live.fill_tokens + reserve) / page - match.device_pages + locked_anew
            if need > self.cache.reclaimable_pages and busy:
                return
            live.hold(self.cache, match.device_node, match.device_pages)
            if not live.grow(self.cache, live.fill_tokens, page):
                self._give_back(live)
                return
            self._prealloc.popleft()
            if request.paired and live.output == 0:
                live.stage = Stage.RECEIVING
                self._outcomes.append(Allocated(request.rid, now_ms, match.device_pages * page))
            else:
                live.computed = live.fill_tokens
                live.stage = Stage.WAITING
                self._waiting.append(live)

    def _admit_received(self, now_ms: float) -> None:
        """Decode engine: requests whose KV is here join the running batch and say the token that prefill produced."""
        while self._waiting and len(self._running) < self.params.max_running:
            live = self._waiting.popleft()
            live.stage = Stage.RUNNING
            self._running.append(live)
            if live.output:  # resumed after a retraction: its last token has no KV yet
                live.computed = live.fill_tokens - 1
                continue
            if self.params.keeps_cache and live.request.keep:
                live.commit(self.cache, live.computed, self.params.page_tokens)
            self._say(live, now_ms)

    def _grow_running(self, now_ms: float) -> bool:
        """Room for one more token of everyone; without it the one with the shortest output starts over later."""
        page = self.params.page_tokens
        for live in list(self._running):
            while live.stage is Stage.RUNNING and not live.grow(self.cache, live.computed + 1, page):
                victim = min(self._running, key=lambda other: (other.output, -other.request.prompt_tokens))
                if victim is live and len(self._running) == 1:
                    self.abort(live.request.rid, now_ms)
                    return bool(self._running)
                self._retract(victim)
        return bool(self._running)

    def _read_tokens(self) -> int:
        """KV tokens that a decode step reads; not counted where they cost nothing."""
        return sum(live.computed for live in self._running) if self.params.decode_ms_per_context_token else 0

    def _retract(self, live: LiveRequest) -> None:
        self.counters.retractions += 1
        self._running.remove(live)
        live.release(self.cache)
        live.computed = 0
        if self.params.role is EngineRole.DECODE:
            live.stage = Stage.PREALLOC
            self._prealloc.appendleft(live)
        else:
            live.stage = Stage.WAITING
            self._waiting.appendleft(live)

    def _finish(self, live: LiveRequest, now_ms: float, reason: FinishReason) -> None:
        rid = live.request.rid
        live.stage = Stage.GONE
        live.release(self.cache)
        del self._live[rid]
        if reason is not FinishReason.DONE:
            self.counters.aborted += 1
        else:
            self.counters.finished += 1
        self._outcomes.append(Finished(rid, now_ms, live.output, live.cached, reason))

    def _start_backups(self, now_ms: float) -> None:
        """Write new pages through to the host tier, one copy after the other."""
        pending, self.cache.to_backup = self.cache.to_backup, []
        for node in pending:
            if self.cache.begin_backup(node):
                tokens = len(node.hashes) * self.params.page_tokens
                done_ms = self._host_lane.take(now_ms, self.params.host_write_ms(tokens))
                self._timers.at(done_ms, self._backup_end(node))

    def _backup_end(self, node: PageNode) -> Callable[[float], None]:
        life = self.cache.life

        def end(now_ms: float) -> None:
            if life != self.cache.life:
                return
            written = list(node.backup or ())
            self.counters.backed_up_tokens += self.cache.end_backup(node) * self.params.page_tokens
            if self._pool is not None:
                for part in written:
                    self._pool.write(part.hashes, part.namespace, part.depth, now_ms)
            self._kick(now_ms)

        return end


_ON_DECODE = frozenset({Stage.RECEIVING, Stage.WAITING, Stage.RUNNING})
# It keeps the time of a batch whose requests were all aborted.
_GHOST = LiveRequest(EngineRequest("", 0, 1, 0, ()), Stage.GONE, 0.0)


def _locked_depth(node: PageNode) -> int:
    """Pages on the path to `node` that someone already uses: they are not reclaimable in any case."""
    pages = 0
    at: PageNode | None = node
    while at is not None:
        if at.locks:
            pages += len(at.hashes)
        at = at.parent
    return pages
