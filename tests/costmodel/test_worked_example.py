"""The table in docs/cost-model.md is what the code computes."""

from __future__ import annotations

import random
import re
from pathlib import Path

from costmodel.hardware import HardwarePrior
from costmodel.params import PolicyParams
from costmodel.policies import CostPolicy
from costmodel.values import Decode, Fleet, Load, Prefill, Residency, Run, Scored, Tier, Turn, WorkerKey

DOC = Path(__file__).parents[2] / "docs" / "cost-model.md"


def row(scored: Scored) -> tuple[str, ...]:
    terms = scored.terms
    values = (
        terms.queue_ms,
        terms.fetch_ms,
        terms.exposed_ms,
        terms.compute_ms,
        terms.transfer_ms,
        terms.decode_ms,
        terms.total_ms,
    )
    return (f"{scored.prefill.worker_id} > {scored.decode.worker_id}", *(f"{value:.1f}" for value in values))


def test_the_table_is_what_the_code_computes() -> None:
    prior = HardwarePrior()

    def prefill(name: str, run: Run, queued: float) -> Prefill:
        return Prefill(WorkerKey(name), Residency((run,)), Load(queued), prior.prefill, prior.restore())

    def decode(name: str, running: int) -> Decode:
        return Decode(WorkerKey(name), Load(running_requests=running), prior.decode, prior.transfer)

    prefills = (prefill("p0", Run(0, 40_960, Tier.L2), 3000), prefill("p1", Run(0, 20_480, Tier.L1), 0))
    fleet = Fleet(prefills, (decode("d0", 12), decode("d1", 4)), prior.kv_bytes_per_token, disaggregated=True)
    decision = CostPolicy(PolicyParams()).decide(Turn("t", 42_000, 300), fleet, 0.0, random.Random(1), explain=True)
    table = re.findall(r"^\| (p\d > d\d) \|(.*)\|$", DOC.read_text(), re.MULTILINE)
    written = [(pair, *(cell.strip() for cell in cells.split("|"))) for pair, cells in table]
    assert written == [row(scored) for scored in (decision.chosen, *decision.others)]
