"""What the admin API shows of the gateway's values. Turns objects into JSON-ready dictionaries and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from costmodel.accuracy import Accuracy
from costmodel.restore import LegView
from costmodel.values import Decision, Scored
from engine_adapters.sglang.subscriber import FeedStatus
from router.dialects import DIALECTS
from router.errors import BadRequest
from router.fleet.pool import Pool
from router.fleet.worker import Worker, WorkerState
from router.gateway import Gateway
from router.kv_fields import given
from router.prefetch.prefetch_metrics import prefetch_view
from router.prompts.pool_prompts import PoolPrompts
from router.prompts.trust import Trust
from router.threads.thread import Thread
from router.turn.extend import Extender
from router.turn.handler import Preview
from router.turn.record import pair_name, terms_json
from router.wire.head import Header


def tiers_view(gateway: Gateway) -> dict[str, object]:
    return {
        "cached_tokens": dict(gateway.metrics.cached_by_tier),
        "agents": [msgspec.to_builtins(status) for status in gateway.tiers.followers.status()],
        "prefetch": prefetch_view(gateway.prefetch.prefetcher),
    }


def worker_view(pool: Pool, worker: Worker, feeds: Sequence[FeedStatus], now_ms: float) -> dict[str, object]:
    info = worker.info
    prefill, decode = worker.rates.prefill(now_ms), worker.rates.decode(now_ms)
    return {
        "id": worker.worker_id,
        "pool": pool.name,
        "role": worker.role,
        "url": worker.config.url,
        "node": worker.node,
        "state": worker.state,
        "breaker": worker.breaker.state(now_ms),
        "last_fault": worker.last_fault,
        "engine": info.engine if info else None,
        "models": list(info.models) if info else [],
        "page_size": info.page_size if info else None,
        "dp_size": info.dp_size if info else None,
        "inflight": worker.inflight,
        "load": [_load_view(worker, rank, now_ms) for rank in range(len(worker.ranks))],
        "rates": {
            "prefill_base_ms": prefill.base_ms,
            "prefill_ms_per_token": prefill.ms_per_token,
            "prefill_ms_per_token2": prefill.ms_per_token2,
            "itl_base_ms": decode.itl_base_ms,
            "itl_ms_per_running": decode.itl_ms_per_running,
            "reply_lifetime_ms": decode.lifetime_ms,
            "queue_factor": pool.rates.queue_factor.value,
            "admit_factor": pool.rates.admit_factor.value,
        },
        "links": [_link_view(leg) for leg in worker.restoring],
        "ttft": _accuracy_view(worker.rates.accuracy),
        "terms": {leg.value: _accuracy_view(accuracy) for leg, accuracy in worker.rates.legs.items() if accuracy.turns},
        "regret": {
            "turns": worker.rates.regret.turns,
            "mean_ms": worker.rates.regret.mean_ms,
            "share": worker.rates.regret.share,
        },
        "events": [
            {"rank": feed.dp_rank, "state": feed.state, "applied": feed.applied, "gaps": feed.gaps, "address": feed.address}
            for feed in feeds
        ],
    }


def _link_view(leg: LegView) -> dict[str, object]:
    return {
        "tier": leg.tier.name,
        "source": leg.source,
        "latency_ms": leg.link.latency_ms,
        "bytes_per_ms": leg.link.bytes_per_ms,
        "factor": leg.factor,
        "reports": leg.reports,
        "replies": leg.replies,
    }


def _accuracy_view(accuracy: Accuracy) -> dict[str, object]:
    return {
        "turns": accuracy.turns,
        "error_p50": accuracy.error,
        "bias_p50": accuracy.bias,
        "drifting": accuracy.drifting,
    }


def _load_view(worker: Worker, rank: int, now_ms: float) -> dict[str, object]:
    load = worker.ranks[rank].load(now_ms, worker.rates.prefill(now_ms).ms_per_token)
    told: dict[str, object] = {name: _rounded(getattr(load, name)) for name in load.__struct_fields__}
    return told | {"rank": rank}


def _rounded(value: float | None) -> float | None:
    return round(value, 1) if isinstance(value, float) else value


def thread_view(thread: Thread) -> dict[str, object]:
    return {
        "id": thread.id,
        "session": thread.group.name,
        "parent": thread.parent,
        "model": thread.model,
        "positions": len(thread.digests),
        "blocks": len(thread.blocks),
        "prefill": thread.prefill,
        "decode": thread.decode,
        "retries": thread.retries,
    }


def pool_index_view(pool: Pool, extender: Extender) -> dict[str, object]:
    """`prompt`: whether the pool's derived prompts may be trusted; `prompts`: what they cost, and the trust per model."""
    prompts = extender.pools.get(pool.name)
    return {
        "pool": pool.name,
        "prompt": extender.state(pool),
        "prompts": prompts_view(prompts) if prompts is not None else None,
        "blocks": {"entries": pool.blocks.entries, "evicted": pool.blocks.evicted},
        "lineage": {"entries": pool.lineage.entries, "evicted": pool.lineage.evicted},
    }


def prompts_view(prompts: PoolPrompts) -> dict[str, object]:
    counts, cache = prompts.counts, prompts.reader.cache if prompts.reader is not None else None
    return {
        "error": prompts.error,
        "threads": len(cache) if cache is not None else 0,
        "bytes": cache.used_bytes if cache is not None else 0,
        "cpu_ms": round(counts.cpu_ms, 3),
        "pending": prompts.pending,
        "forwarded": counts.forwarded,
        "fallbacks": dict(counts.fallbacks),
        "models": [_trust_view(model, path, trust) for model, path, trust in prompts.models()],
    }


def _trust_view(model: str, path: str, trust: Trust) -> dict[str, object]:
    return {
        "model": model,
        "path": path,
        "state": trust.level,
        "agreed": trust.agreed,
        "verified": trust.verified,
        "mismatches": trust.mismatches,
        "reason": trust.reason,
    }


class _Conversation(msgspec.Struct):
    """The members that hold it, by dialect."""

    messages: Raw = Raw(b"null")
    prompt: Raw = Raw(b"null")
    input: Raw = Raw(b"null")

    def has(self, member: str) -> bool:
        return given(getattr(self, member))


def _check_conversation(path: str, body: bytes) -> None:
    """Raises `BadRequest` for the body of another path. What is no JSON is told by the scan."""
    try:
        found = msgspec.json.decode(body, type=_Conversation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    wanted = DIALECTS[path].message_key
    if not found.has(wanted):
        others = [other for other, dialect in DIALECTS.items() if found.has(dialect.message_key)]
        hint = f": it is one for {' or '.join(others)}, so give that as path" if others else ""
        raise BadRequest(f"a body for {path} has `{wanted}`, which this one lacks{hint}", param=wanted)


def explain_view(
    gateway: Gateway, path: str, body: bytes, headers: list[Header], deadline_ms: float | None
) -> dict[str, object]:
    """A dry run: nothing is sent, booked or remembered."""
    if path not in DIALECTS:
        raise BadRequest(f"path must be one of {', '.join(sorted(DIALECTS))}", param="path")
    _check_conversation(path, body)
    preview = gateway.turns.preview(path, body, headers, deadline_ms)
    decision, sighting = preview.placement.decision, preview.sighting
    return {
        "model": preview.model,
        "pool": preview.pool.name,
        "thread": sighting.thread,
        "kind": sighting.kind,
        "first_call": sighting.first_call,
        "prompt_tokens": sighting.prompt_tokens,
        "prompt_tokens_exact": sighting.counted,
        "known_tokens": sighting.known_tokens,
        "policy": decision.policy,
        "worker": pair_name(decision),
        "reason": decision.reason,
        "guards": list(decision.guards),
        "class": preview.due.name if preview.due else None,
        "deadline_ms": preview.due.ttft_ms if preview.due else None,
        "shed": _sheds(preview),
        "chosen": _scored_view(decision, decision.chosen),
        "others": [_scored_view(decision, scored) for scored in decision.others],
        "left_out": _left_out(preview.pool, decision, gateway.clock()),
    }


def _left_out(pool: Pool, decision: Decision, now_ms: float) -> dict[str, str]:
    """Workers that were not weighed, and why."""
    weighed = {key.worker_id for scored in (decision.chosen, *decision.others) for key in (scored.prefill, scored.decode)}
    return {name: _absence(worker, now_ms) for name, worker in pool.workers.items() if name not in weighed}


def _absence(worker: Worker, now_ms: float) -> str:
    if worker.state is not WorkerState.READY:
        return worker.state.value
    return "breaker open" if not worker.breaker.allows(now_ms) else "refused a turn, or was not there, a moment ago"


def _sheds(preview: Preview) -> bool:
    """Whether such a turn would be refused."""
    due = preview.due
    return due is not None and due.shed and preview.placement.decision.chosen.terms.ttft_ms > due.ttft_ms


def _scored_view(decision: Decision, scored: Scored) -> dict[str, object]:
    named = Decision(scored, (), decision.policy, "")
    return {
        "worker": pair_name(named),
        "cut_tokens": scored.cut_tokens,
        "hit_tier": scored.hit_tier.name if scored.hit_tier else None,
        "terms": terms_json(scored.terms),
    }
