"""What restores take at one worker: a link for each leg, from what agents count and what replies show.

Two teachers, who teach different things. An agent counts bytes and the time that moving them took: that is a link's bandwidth.
A reply shows how long its first token waited for a restore: that is what an engine makes of the link, kept as a factor of its
own for each tier (`costmodel.lesson` says which turns tell). Without an agent the factor alone moves the prior.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

import msgspec

from costmodel.factor import MedianFactor
from costmodel.terms import link_ms
from costmodel.values import Link, Tier

_BOUND, _FIRST_STEP = 64.0, 0.35  # a prior that is off by 4 takes seven replies
_LEAST_MS = 1.0  # bytes that were over sooner say more of how they were asked for than of the link
_MOST_MS, _MOST_BYTES_PER_MS = 1e12, 1e10  # 30 years; 10 TB/s, which no link moves: not a measurement
_REPORTS = 15  # a link is the median of the last ones: a few that are far off do not move it, a change is known after eight
_MOST_SOURCES = 256


class LegView(msgspec.Struct, frozen=True):
    """One leg as it is believed. `source`: the node that it comes from, "" for the worker's own or where that is not known."""

    tier: Tier
    source: str
    link: Link
    factor: float = 1.0
    reports: int = 0
    replies: int = 0


class KnownRestore(msgspec.Struct, frozen=True):
    """What was learned: measured links by `L4` or, from another node, `L3 NODE`, and the factors by tier."""

    links: dict[str, Link] = {}
    factors: dict[str, float] = {}


class RestoreLegs(msgspec.Struct, frozen=True):
    """What a served turn restored, at the links as they are now; `tier` is where most of it came from."""

    tokens: int
    tier: Tier
    host_ms: float
    deep_ms: float = 0.0  # from beyond L2; 0 where nothing was


class RestoreLinks:
    """`restore` and `sources` are as `costmodel.values.Prefill` wants them, made anew when something was learned."""

    def __init__(self, priors: Mapping[Tier, Link]) -> None:
        self._own = {tier: _Leg(prior) for tier, prior in priors.items()}
        self._others: dict[str, _Leg] = {}  # L3 of other nodes
        self._factors = {tier: MedianFactor(bound=_BOUND, first_step=_FIRST_STEP) for tier in priors}
        self._remake()

    def told(self, tier: Tier, source: str, size_bytes: float, busy_ms: float) -> None:
        """An agent moved so much, and its link was busy so long. `source` is "" for the worker's own node."""
        leg = self._other(source) if source else self._own.get(tier)
        if leg is None or not (_LEAST_MS <= busy_ms < _MOST_MS and 1 <= size_bytes < _MOST_BYTES_PER_MS * busy_ms):
            return
        before = leg.told(size_bytes, busy_ms)
        if before is not None and not source and self._factors[tier].value != 1.0:
            self._factors[tier].rescale(leg.link.bytes_per_ms / before.bytes_per_ms)
        self._remake()

    def observe(self, tier: Tier, predicted_ms: float, actual_ms: float) -> None:
        """A reply showed how long a restore from `tier` took; `predicted_ms` is what `restore` says of it now."""
        if tier in self._factors:
            self._factors[tier].observe(predicted_ms, actual_ms)
            self._remake()

    def legs(self, cached_by_tier: Mapping[Tier, int], hit_tier: Tier | None, kv_bytes_per_token: float) -> RestoreLegs:
        """Of a turn whose reply told where its cached tokens came from. What storage held is L4's if that was predicted."""
        host, stored = cached_by_tier.get(Tier.L2, 0), cached_by_tier.get(Tier.L3, 0) + cached_by_tier.get(Tier.L4, 0)
        deep = Tier.L4 if hit_tier is Tier.L4 else Tier.L3
        host_ms = self._ms(Tier.L2, (host + stored) * kv_bytes_per_token)
        deep_ms = self._ms(deep, stored * kv_bytes_per_token)
        return RestoreLegs(host + stored, deep if stored > host else Tier.L2, host_ms, deep_ms)

    def views(self) -> list[LegView]:
        own = [
            LegView(tier, "", self.restore[tier], self._factors[tier].value, leg.reports, self._factors[tier].observed)
            for tier, leg in self._own.items()
        ]
        return own + [LegView(Tier.L3, source, leg.link, reports=leg.reports) for source, leg in self._others.items()]

    def known(self) -> KnownRestore:
        links = {tier.name: leg.link for tier, leg in self._own.items() if leg.measured}
        links |= {f"{Tier.L3.name} {source}": leg.link for source, leg in self._others.items() if leg.measured}
        return KnownRestore(links, {tier.name: each.value for tier, each in self._factors.items() if each.value != 1.0})

    def start_from(self, known: KnownRestore) -> None:
        """As first beliefs, which measurements can still overturn."""
        for name, link in known.links.items():
            _, _, source = name.partition(" ")
            leg = self._other(source) if source else next((leg for tier, leg in self._own.items() if tier.name == name), None)
            if leg is not None and link.bytes_per_ms > 0:
                leg.start_from(link)
        for tier in self._factors:
            if tier.name in known.factors:
                self._factors[tier] = MedianFactor(known.factors[tier.name], bound=_BOUND)
        self._remake()

    def _other(self, source: str) -> _Leg | None:
        leg = self._others.get(source)
        if leg is None and Tier.L3 in self._own and len(self._others) < _MOST_SOURCES:
            leg = self._others[source] = _Leg(self._own[Tier.L3].prior)
        return leg

    def _ms(self, tier: Tier, size_bytes: float) -> float:
        link = self.restore.get(tier)
        return link_ms(link, size_bytes) if link is not None and size_bytes > 0 else 0.0

    def _remake(self) -> None:
        self.restore = {tier: _slowed(leg.link, self._factors[tier].value) for tier, leg in self._own.items()}
        self.sources = {source: leg.link for source, leg in self._others.items()}


class _Leg:
    """A prior, then what was measured."""

    def __init__(self, prior: Link) -> None:
        self.prior = self.link = prior
        self.measured = False
        self.reports = 0
        self._rates: deque[float] = deque(maxlen=_REPORTS)  # bytes a ms

    def told(self, size_bytes: float, busy_ms: float) -> Link | None:
        """The link as it was believed until now if this is the first that was measured of it."""
        before = None if self.measured else self.link
        self._rates.append(size_bytes / busy_ms)
        self.link = Link(self.prior.latency_ms, median(self._rates))
        self.measured = True
        self.reports += 1
        return before

    def start_from(self, link: Link) -> None:
        self.link, self.measured = link, True


def _slowed(link: Link, factor: float) -> Link:
    return Link(link.latency_ms, link.bytes_per_ms / factor, link.active_flows)
