"""What a policy is, and the pieces that every policy shares.

A policy hears `Turn` and `Fleet` and answers with a `Decision`. It may keep state of its own, never a clock, and knows
nothing of HTTP, engines or how the values were measured.
"""

from __future__ import annotations

import random
from typing import Protocol

from costmodel.explain import explain_sentence
from costmodel.params import CostParams
from costmodel.score import runners_up, score_pair
from costmodel.values import Decision, Decode, Fleet, Prefill, Scored, Turn


class Policy(Protocol):
    """One way to place turns."""

    name: str

    def decide(self, turn: Turn, fleet: Fleet, now_ms: float, rng: random.Random, explain: bool = False) -> Decision:
        """Choose a pair. `Decision.others` and `reason` are filled only under `explain`. Raises `NoCandidates`."""
        ...


class NoCandidates(Exception):
    """The fleet lacks a worker of a role that the turn needs. The message names the role."""


def require_candidates(fleet: Fleet) -> None:
    """Raise `NoCandidates` unless there is a worker for each leg."""
    if not fleet.prefills:
        raise NoCandidates("no prefill worker is available" if fleet.disaggregated else "no worker is available")
    if not fleet.decodes:
        raise NoCandidates("no decode worker is available")


def predict(
    policy: str, turn: Turn, prefill: Prefill, decode: Decode, fleet: Fleet, params: CostParams, explain: bool
) -> Decision:
    """The decision for a pair that a policy has chosen by its own rule, with the same terms as `cost` would give it."""
    return decision(policy, turn, score_pair(turn, prefill, decode, fleet, params), fleet, params, explain)


def decision(policy: str, turn: Turn, chosen: Scored, fleet: Fleet, params: CostParams, explain: bool) -> Decision:
    """Wrap the chosen pair; the runners-up and the sentence are made only under `explain`."""
    if not explain:
        return Decision(chosen, (), policy, "")
    others = runners_up(turn, chosen, fleet, params)
    return Decision(chosen, others, policy, explain_sentence(Decision(chosen, others, policy, ""), turn, params.objective))
