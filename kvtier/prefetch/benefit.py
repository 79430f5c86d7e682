"""Is it worth it? P(return in the window) x ms saved x turns behind, against link and engine time and eviction harm, in ms."""

from __future__ import annotations

import msgspec

from kvtier.prefetch.layout import Layout
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.view import View

_LATE_SHARE = 0.5  # of the saving is left when the turn comes while its KV is on the way, over all moments at which it may


class Odds(msgspec.Struct, frozen=True, gc=False):
    """Probabilities of the turn coming: when everything is staged, or while it is on its way."""

    ready: float
    late: float


class Worth(msgspec.Struct, frozen=True, gc=False):
    benefit_ms: float
    cost_ms: float


def weigh(layout: Layout, odds: Odds, view: View) -> Worth:
    """Of staging, and of the warm request behind it where one is possible."""
    target = layout.target
    saved = layout.saved_by_stage_ms + (layout.saved_by_warm_ms if layout.warm_tokens else 0.0)
    benefit = saved * (odds.ready + _LATE_SHARE * odds.late) * (1 + target.waiting_turns)
    cost = link_cost_ms(layout, view) + harm_ms(layout, view)
    if layout.warm_tokens:
        cost += warm_cost_ms(layout)
    return Worth(benefit, cost)


def worthwhile(layout: Layout, worth: Worth, params: PrefetchParams) -> bool:
    saved = layout.saved_by_stage_ms + (layout.saved_by_warm_ms if layout.warm_tokens else 0.0)
    return saved >= params.min_saved_ms and worth.benefit_ms > params.cost_margin * worth.cost_ms


def link_cost_ms(layout: Layout, view: View) -> float:
    """What demand on the same links may wait: the time that they are busy with this, times the share that demand uses."""
    total = 0.0
    for copy in layout.copies:
        state = view.link(copy.path)
        rate = state.link.bytes_per_ms
        used = min(1.0, state.demand_bytes_per_ms / rate)
        total += used * copy.tokens * layout.target.kv_bytes_per_token / rate
    return total


def harm_ms(layout: Layout, view: View) -> float:
    """What must be evicted for it."""
    node = view.node(layout.target.node)
    return max(0, layout.stage_bytes - max(0, node.free_bytes)) * node.harm_ms_per_byte


def warm_cost_ms(layout: Layout) -> float:
    """A warm request takes one step of the engine, from the turns that wait there too."""
    return layout.target.rates.base_ms * (1 + layout.target.waiting_turns)
