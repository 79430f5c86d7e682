"""Which guards decided: those without which another pair would have been chosen. For people who ask, never on the hot path."""

from __future__ import annotations

import random

import msgspec

from costmodel.explain import pair_words
from costmodel.params import GUARDS
from costmodel.policies.cost import CostPolicy
from costmodel.values import Decision, Fleet, Turn

_EXPLAINED_LOTS = 0  # every rule is asked with the same lots


def name_guards(policy: CostPolicy, decision: Decision, turn: Turn, fleet: Fleet, now_ms: float) -> Decision:
    """`decision` with the deciding guards and a sentence that names them.

    `policy` as it was before it decided, and with the lots of `explained_lots`. A guard counts if the choice differs with it
    alone switched off.
    """
    chosen = decision.chosen
    found: dict[str, str] = {}
    for guard, off in GUARDS.items():
        if getattr(policy.params, guard) == off:
            continue
        other = policy.without(guard, off).decide(turn, fleet, now_ms, explained_lots()).chosen
        if (other.prefill, other.decode) != (chosen.prefill, chosen.decode):
            found[guard] = pair_words(other)
    return msgspec.structs.replace(decision, guards=tuple(found), reason=f"{decision.reason}; {_words(found)}")


def explained_lots() -> random.Random:
    """The generator of a dry run: it must not move the real one."""
    return random.Random(_EXPLAINED_LOTS)


def _words(found: dict[str, str]) -> str:
    if not found:
        return "no guard changed it"
    return "decided by " + ", ".join(f"{guard} (without it {pair})" for guard, pair in found.items())
