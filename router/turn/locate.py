"""Step 4: for one sighted turn, what each worker of the pool already holds of its prompt.

With block hashes (a tokenizer is configured and the thread has been tokenised) the engines' own KV events answer. Otherwise the
thread's lineage does: what was routed to a worker counts as resident there until a reply said otherwise. Multimodal threads
always go by lineage, since the ids of image blocks cannot be derived.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog

from costmodel.values import Residency, Tier, WorkerKey
from kvtier.index.convert import lineage_runs, to_residency
from kvtier.index.sources import SourceLimit
from router.fleet.pool import Pool
from router.threads.sighting import Sighting
from router.turn.place import Placement

# Of a prompt with more blocks only some are looked up: who holds a block holds those before it, and looking up 100,000 (as
# many tokens at a page size of 1) would hold the event loop for 20 ms.
_MOST_BLOCKS = 8192

_log = structlog.get_logger(__name__)


class Located(msgspec.Struct, frozen=True):
    """Residency per worker that holds anything; workers that hold nothing are absent.

    `positions`: how many leading messages of the lineage each holds, where the lineage was asked.
    """

    residencies: dict[WorkerKey, Residency]
    positions: dict[WorkerKey, int] = {}


def locate(pool: Pool, sighting: Sighting, now_ms: float) -> Located:
    """By blocks for the workers whose events are followed, by lineage or the pool, whichever goes further, for the others."""
    lineage = _locate_lineage(pool, sighting, now_ms)
    if not len(sighting.blocks) or sighting.multimodal:
        return lineage
    blocks = pool.blocks
    residencies = {key: held for key, held in lineage.residencies.items() if not blocks.speaks_for(key)}
    stride = len(sighting.blocks) // _MOST_BLOCKS + 1
    matches = blocks.match(sighting.blocks[stride - 1 :: stride], now_ms, alone=not pool.pages_come)
    for key, match in matches.items():
        held = to_residency(match, sighting.block_tokens * stride, sighting.prompt_tokens)
        held = _confirmed(held, pool, key, now_ms)
        if key not in residencies or held.tokens > residencies[key].tokens:
            residencies[key] = _idle(held, sighting, key, now_ms)
    return Located(residencies, lineage.positions)


def _locate_lineage(pool: Pool, sighting: Sighting, now_ms: float) -> Located:
    held = pool.lineage.leading(sighting.digests)
    before, placed_ms = sighting.prefill_before, sighting.placed_ms
    if before in held and _evicted(pool, before, placed_ms):
        del held[before]
    residencies = {}
    for key, positions in held.items():
        worker = pool.workers.get(key.worker_id)
        page_size = worker.page_size if worker is not None else 0
        runs = lineage_runs(positions, sighting.tokens, page_size)
        if placed_ms is not None and (key == before or key == sighting.decode_before):  # its last turn is the evidence
            since_ms = now_ms - placed_ms
            residencies[key] = Residency(runs, since_ms, since_ms if key == before else 0.0)
        else:
            residencies[key] = Residency(runs, pool.lineage.age_ms(key, now_ms))
    return Located(residencies, held)


def _confirmed(held: Residency, pool: Pool, key: WorkerKey, now_ms: float) -> Residency:
    """An engine that reports its load and publishes no events has changed nothing: what it holds is as old as the younger."""
    worker = pool.workers.get(key.worker_id)
    if worker is None or key.dp_rank >= len(worker.ranks):
        return held
    heard_ms = worker.ranks[key.dp_rank].report_age_ms(now_ms)
    return msgspec.structs.replace(held, age_ms=heard_ms) if heard_ms < held.age_ms else held


def _idle(held: Residency, sighting: Sighting, key: WorkerKey, now_ms: float) -> Residency:
    """How long the worker has not used it, where the thread itself was served last; of others that is not known."""
    if sighting.placed_ms is None or key != sighting.prefill_before:
        return held
    return msgspec.structs.replace(held, idle_ms=now_ms - sighting.placed_ms)


class Assumed(msgspec.Struct, frozen=True):
    """What was newly taken for held by a worker when a turn was sent to it."""

    worker: WorkerKey
    digests: Sequence[int]


def assume(pool: Pool, sighting: Sighting, placement: Placement, located: Located, now_ms: float) -> list[Assumed]:
    """Predict on route: the prompt will lie where it was sent, so that the next turn in this millisecond already sees it.

    A decode worker keeps it only with a radix cache of its own; without one its KV is gone with the reply.
    """
    chosen = placement.decision.chosen
    keepers = [chosen.prefill]
    if placement.disaggregated and placement.decode.info is not None and placement.decode.info.decode_keeps_cache:
        keepers.append(chosen.decode)
    assumed = [Assumed(key, sighting.digests[located.positions.get(key, 0) :]) for key in keepers]
    try:
        for entry in assumed:
            pool.lineage.assume(entry.worker, entry.digests, Tier.L1, now_ms)
    except SourceLimit as error:  # more ranks than `index.max_workers`: these go without a memory
        _log.warning("index_full", pool=pool.name, error=str(error))
    return assumed


def retract(pool: Pool, assumed: Sequence[Assumed]) -> None:
    """The turn was refused or failed before its prompt was computed: nothing of it lies there after all."""
    for entry in assumed:
        pool.lineage.refute(entry.worker, entry.digests)


def _evicted(pool: Pool, worker_key: WorkerKey, placed_ms: float | None) -> bool:
    """Whether replies since the thread's last turn there told that the worker has evicted prompts younger than that."""
    worker = pool.workers.get(worker_key.worker_id)
    if worker is None or placed_ms is None or worker_key.dp_rank >= len(worker.ranks):
        return False
    return placed_ms < worker.ranks[worker_key.dp_rank].evicted_before_ms
