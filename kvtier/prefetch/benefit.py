"""Is it worth it? P(it is used) x ms saved x turns behind, against link and engine time, eviction harm and waste, in ms."""

from __future__ import annotations

import msgspec

from costmodel.terms import link_ms
from costmodel.values import Tier
from kvtier.prefetch.layout import Layout
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.view import View

_DISPLACED_SHARE = 0.3  # of what a warm request pushes out of L1 would have been used from there
_LATE_SHARE = 0.5  # of the saving is left when the turn comes while its KV is on the way, over all moments at which it may


class Odds(msgspec.Struct, frozen=True, gc=False):
    """P(the turn comes when everything is staged), P(it comes while that is on its way); `here`: P(it comes here, if so)."""

    ready: float
    late: float
    here: float = 1.0

    @property
    def used(self) -> float:
        return self.here * (self.ready + self.late)


class Worth(msgspec.Struct, frozen=True, gc=False):
    saved_ms: float  # of the turn that uses it
    benefit_ms: float
    cost_ms: float

    @property
    def gain_ms(self) -> float:
        return self.benefit_ms - self.cost_ms

    def plus(self, other: Worth) -> Worth:
        return Worth(self.saved_ms + other.saved_ms, self.benefit_ms + other.benefit_ms, self.cost_ms + other.cost_ms)


def weigh_stage(layout: Layout, odds: Odds, view: View) -> Worth:
    """Where the engine reads other nodes by itself, the saving is the difference between its link and its own node's alone."""
    saved = layout.saved_by_stage_ms
    benefit = saved * odds.here * (odds.ready + _LATE_SHARE * odds.late) * (1 + layout.target.waiting_turns)
    wasted = (1.0 - odds.used) * layout.stage_ms
    return Worth(saved, benefit, link_cost_ms(layout, view) + harm_ms(layout, view) + wasted)


def weigh_warm(layout: Layout, used: float, turns_per_ms: float) -> Worth:
    """`used`: P(the turn comes here while L1 still has it). `turns_per_ms`: that come to this worker."""
    saved = layout.saved_by_warm_ms
    benefit = saved * used * (1 + layout.target.waiting_turns)
    return Worth(saved, benefit, warm_cost_ms(layout, turns_per_ms) + _DISPLACED_SHARE * saved)


def worthwhile(worth: Worth, params: PrefetchParams) -> bool:
    return worth.saved_ms >= params.min_saved_ms and worth.benefit_ms > params.cost_margin * worth.cost_ms


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


def warm_cost_ms(layout: Layout, turns_per_ms: float) -> float:
    """A warm request takes one step of the engine, as long as the copy to the device: from the turns that wait there, and from
    those that come meanwhile, half of it each."""
    target = layout.target
    host = target.restore.get(Tier.L2)
    step = max(target.rates.base_ms, link_ms(host, layout.warm_bytes) if host is not None else 0.0)
    return step * (target.waiting_turns + turns_per_ms * step / 2)
