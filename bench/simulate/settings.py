"""What an experiment fixes beside workload and pool."""

from __future__ import annotations

import math

import msgspec

from bench.simulate.churn import Change
from bench.simulate.clients import Rota
from kvtier.prefetch.events import Trigger


class Settings(msgspec.Struct, frozen=True):
    """Lags are how late the gateway hears."""

    horizon_s: float  # no call is sent later
    warmup_s: float = 0.0  # turns that arrive earlier are not counted
    concurrency: int = 0  # sessions open at once; 0 = open loop
    ramp_s: float = 60.0
    rota: Rota | None = None
    pin_grow_tokens: int = 0  # forced migration: sessions start on the first prefill and move on after growing by this; 0 = off
    drain_share: float = 0.0  # of calls whose thread's last prefill worker is not to be had
    event_lag_ms: float = 20.0
    load_poll_ms: float = 1_000.0
    load_lag_ms: float = 10.0
    prior_error: float = 0.3
    resume_gap_s: float = 60.0
    gap_factor: float = 1.0  # of the workload's own tool times and pauses
    predict_on_route: bool = True  # False: the gateway knows of its own turns what engines report of them
    hold_ms: float = 0.0  # `router.fleet.hold`; 0 = off
    own_node: float = 0.0  # above 0: engines read their own node's share of L3 alone, as beside node agents
    prefetch: frozenset[Trigger] = frozenset()  # what makes the planner move KV ahead of turns; wants a shared pool
    churn: tuple[Change, ...] = ()
    hindsight_share: float = 0.0  # of turns after the warm-up for which every other choice is tried


ASSUMED = ("event_lag_ms", "load_poll_ms", "load_lag_ms", "prior_error", "resume_gap_s", "gap_factor", "hold_ms", "own_node")
"""What `--assume` may change."""
_BOUNDS = {
    "load_poll_ms": (1.0, math.inf),
    "prior_error": (0.0, 1.0),
}  # from 1 on a rate would be believed to be nothing, or less


def parse_assumed(text: str) -> dict[str, float]:
    """`key=value` pairs. Raises `ValueError` naming what is wrong with them."""
    pairs = [word.partition("=") for word in text.replace(" ", "").split(",") if word]
    return {key: _amount(key, value) for key, _, value in pairs}


def _amount(key: str, text: str) -> float:
    if key not in ASSUMED:
        raise ValueError(f"--assume knows no {key!r}: choose from {', '.join(ASSUMED)}")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"--assume wants a number for {key}, not {text!r}") from None
    least, limit = _BOUNDS.get(key, (0.0, math.inf))
    if not least <= value < limit:
        raise ValueError(f"--assume wants {key} from {least:g} to below {limit:g}, not {text}")
    return value
