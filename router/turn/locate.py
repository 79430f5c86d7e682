"""Step 4: for one sighted turn, what each worker of the pool already holds of its prompt.

With block hashes (a tokenizer is configured and the thread has been tokenised) the engines' own KV events answer. Otherwise the
thread's lineage does: what was routed to a worker counts as resident there until a reply said otherwise. Multimodal threads
always go by lineage, since the ids of image blocks cannot be derived.
"""

from __future__ import annotations

from costmodel.values import Residency, Tier, WorkerKey
from kvtier.index.convert import lineage_residency, to_residency
from kvtier.index.match import Match
from router.fleet.pool import Pool
from router.threads.sighting import Sighting
from router.turn.place import Placement


def locate(pool: Pool, sighting: Sighting, now_ms: float) -> dict[WorkerKey, Residency]:
    """Residency per worker that holds anything; workers that hold nothing are absent."""
    if len(sighting.blocks) and not sighting.multimodal:
        matches = pool.blocks.match(sighting.blocks, now_ms)
        return {key: to_residency(match, sighting.block_tokens, sighting.prompt_tokens) for key, match in matches.items()}
    matches = pool.lineage.match(sighting.digests, now_ms)
    if _evicted(pool, sighting):
        matches = {key: match for key, match in matches.items() if key != sighting.prefill_before}
    return {key: _by_lineage(pool, sighting, key, match, now_ms) for key, match in matches.items()}


def _by_lineage(pool: Pool, sighting: Sighting, key: WorkerKey, match: Match, now_ms: float) -> Residency:
    """Messages as blocks, rounded to the engine's pages. Where the thread itself was served, its last turn is the evidence."""
    worker = pool.workers.get(key.worker_id)
    page_size = worker.info.page_size if worker is not None and worker.info is not None else 1
    own = sighting.placed_ms is not None and key in (sighting.prefill_before, sighting.decode_before)
    age_ms = now_ms - sighting.placed_ms if own and sighting.placed_ms is not None else None
    return lineage_residency(match, sighting.tokens, sighting.prompt_tokens, page_size, age_ms)


def assume(pool: Pool, sighting: Sighting, placement: Placement, now_ms: float) -> None:
    """Predict on route: the prompt will lie where it was sent, so that the next turn in this millisecond already sees it.

    A decode worker keeps it only with a radix cache of its own; without one its KV is gone with the reply.
    """
    chosen = placement.decision.chosen
    pool.lineage.assume(chosen.prefill, sighting.digests, Tier.L1, now_ms)
    if placement.disaggregated and placement.decode.info is not None and placement.decode.info.decode_keeps_cache:
        pool.lineage.assume(chosen.decode, sighting.digests, Tier.L1, now_ms)


def _evicted(pool: Pool, sighting: Sighting) -> bool:
    """Whether replies since this thread's last turn told that its worker has evicted prompts younger than it."""
    before = sighting.prefill_before
    worker = pool.workers.get(before.worker_id) if before else None
    if before is None or worker is None or sighting.placed_ms is None or before.dp_rank >= len(worker.ranks):
        return False
    return sighting.placed_ms < worker.ranks[before.dp_rank].evicted_before_ms
