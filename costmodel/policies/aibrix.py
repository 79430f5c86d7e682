"""AIBrix: prefix matches by percent among workers that are not too busy.

    unified: max - min running > 16 -> fewest running; else the best match with running <= mean + 2 sigma, ties to fewer running
    prefill: least (100 - match %) x 0.1 + running / max running
    decode:  least (running / max + 1 - throughput / max) / (free KV / max)

Source: vllm-project/aibrix `pkg/plugins/gateway/algorithms/prefix_cache.go` with the values of its chart
(`dist/chart/stable.yaml`), `util.go` (sigma is a sample's), `pd/prefill_scorer.go` @08e6cac, `pd/decode_scorer.go` @0779ef5.
Matches come from its own table of routed prompts (KV event sync is off by default): `Prefill.routed_tokens`. A decode worker's
throughput is its batch over the latency at that batch.
"""

from __future__ import annotations

import random
import statistics

from costmodel.policies.choice import least
from costmodel.policies.llm_d import kv_use
from costmodel.policies.two_leg import TwoLegPolicy, routed_tokens
from costmodel.values import Decode, Fleet, Prefill, Turn

IMBALANCE_REQUESTS = 16
DEVIATION_FACTOR = 2
CACHE_TERM = 0.1
_MIN_FREE_PERCENT = 0.1


class AibrixPolicy(TwoLegPolicy):
    """Stateless: its table's answer comes with the fleet."""

    name = "aibrix"

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        if not fleet.disaggregated:
            return self._unified(turn, fleet, rng)
        busiest = max(1, max(prefill.inflight_turns for prefill in fleet.prefills))
        return least(
            fleet.prefills,
            lambda prefill: (100 - match_percent(turn, prefill)) * CACHE_TERM + prefill.inflight_turns / busiest,
            rng,
        )

    def _unified(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        running = [prefill.inflight_turns for prefill in fleet.prefills]
        if max(running) - min(running) > IMBALANCE_REQUESTS:
            return least(fleet.prefills, lambda prefill: prefill.inflight_turns, rng)
        sigma = statistics.stdev(running) if len(running) > 1 else 0.0
        limit = statistics.fmean(running) + DEVIATION_FACTOR * sigma
        matched = [p for p in fleet.prefills if match_percent(turn, p) > 0 and p.inflight_turns <= limit]
        if not matched:
            return least(fleet.prefills, lambda prefill: prefill.inflight_turns, rng)
        return least(matched, lambda prefill: (-match_percent(turn, prefill), prefill.inflight_turns), rng)

    def _decode(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Decode:
        decodes = fleet.decodes
        most_running = max(1, max(decode.inflight_turns for decode in decodes))
        most_tokens = max(1.0, max(throughput(decode) for decode in decodes))
        most_free = max(free_percent(decode) for decode in decodes)

        def score(decode: Decode) -> float:
            load = decode.inflight_turns / most_running + 1 - throughput(decode) / most_tokens
            return load / (free_percent(decode) / most_free)

        return least(decodes, score, rng)


def match_percent(turn: Turn, prefill: Prefill) -> int:
    return 100 * min(routed_tokens(prefill), turn.prompt_tokens) // turn.prompt_tokens if turn.prompt_tokens else 0


def throughput(decode: Decode) -> float:
    """Output tokens a second."""
    running = decode.load.running_requests
    itl_ms = decode.rates.itl_base_ms + decode.rates.itl_ms_per_running * running
    return 1000 * running / itl_ms if itl_ms > 0 else 0.0


def free_percent(decode: Decode) -> float:
    return max(_MIN_FREE_PERCENT, 100 * (1 - kv_use(decode)))
