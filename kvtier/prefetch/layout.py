"""What would have to move so that a prompt lies ready at a worker, from where, and what that saves: arithmetic alone.

The prompt is walked from its first token. What the engine or its node's L3 has stays; the rest comes from the copy that arrives
first; where no copy is left the walk ends, because an engine restores a leading run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from costmodel.cut import Site, find_cut
from costmodel.terms import link_ms
from costmodel.values import Link, Residency, Run, Tier
from kvtier.prefetch.view import Extent, Path, Place, Target, View


class Copy(msgspec.Struct, frozen=True, gc=False):
    """`tokens` from `start` on, along one path; `others` are the paths to try if its source fails. No more than `max_bytes` are
    moved for it, whatever its pages weigh; None = no such bound."""

    start: int
    tokens: int
    path: Path
    others: tuple[Path, ...] = ()
    max_bytes: int | None = None


class Layout(msgspec.Struct, frozen=True):
    """`copies` in order of the prompt. Costs are of the next turn's restore and compute, in ms."""

    target: Target
    copies: tuple[Copy, ...]
    ready_tokens: int  # leading tokens that lie at the worker or in its node's L3 afterwards
    warm_tokens: int  # leading tokens that a warm request would restore to L1
    warm_bytes: int  # that it would bring up
    stage_bytes: int
    stage_ms: float  # at full bandwidth
    now_ms: float  # what the turn costs as things are
    staged_ms: float  # once everything is staged
    warmed_ms: float  # and restored to L1

    @property
    def saved_by_stage_ms(self) -> float:
        return max(0.0, self.now_ms - self.staged_ms)

    @property
    def saved_by_warm_ms(self) -> float:
        return max(0.0, self.staged_ms - self.warmed_ms) if self.warm_tokens else 0.0

    def unstaged(self) -> Layout:
        """With nothing moved between nodes: only an engine that reads other nodes by itself can be warmed so."""
        return msgspec.structs.replace(self, copies=(), stage_bytes=0, stage_ms=0.0, staged_ms=self.now_ms)

    def unwarmed(self) -> Layout:
        return msgspec.structs.replace(self, warm_tokens=0, warm_bytes=0)


class Step(msgspec.Struct, frozen=True, gc=False):
    """An extent with the tier that it will be restored from, and the path it takes before that, if any."""

    start: int
    tokens: int
    tier: Tier
    copy: Copy | None = None


def lay_out(target: Target, view: View) -> Layout:
    steps = list(_walk(target, view))
    copies = tuple(step.copy for step in steps if step.copy is not None)
    staged = [msgspec.structs.replace(step, copy=None) for step in steps]
    ready = steps[-1].start + steps[-1].tokens if steps else 0
    deep = sum(step.tokens for step in steps if step.tier is not Tier.L1)
    links = {copy.path: view.link(copy.path).link for copy in copies}
    warm = ready if deep and target.warmable else 0
    return Layout(
        target,
        copies,
        ready,
        warm,
        int(deep * target.kv_bytes_per_token) if warm else 0,
        int(sum(copy.tokens for copy in copies) * target.kv_bytes_per_token),
        max(_path_times(copies, links, target.kv_bytes_per_token).values(), default=0.0),
        _turn_ms(_reachable(steps, target), target, links),
        _turn_ms(staged, target, {}),
        _turn_ms([Step(0, ready, Tier.L1)] if ready else [], target, {}),
    )


def _walk(target: Target, view: View) -> Iterable[Step]:
    for extent in target.extents:
        step = _step(extent, target, view)
        if step is None:
            return
        yield step


def _step(extent: Extent, target: Target, view: View) -> Step | None:
    if extent.engine is not None:
        return Step(extent.start, extent.tokens, extent.engine)
    if Tier.L3 not in target.restore:
        return None
    if Place(target.node, Tier.L3) in extent.places:
        return Step(extent.start, extent.tokens, Tier.L3)
    paths = _paths(extent, target, view)
    return Step(extent.start, extent.tokens, Tier.L3, Copy(extent.start, extent.tokens, paths[0], paths[1:])) if paths else None


def _paths(extent: Extent, target: Target, view: View) -> tuple[Path, ...]:
    """The ways to the destination's L3, soonest first, as its links are used now."""
    size = extent.tokens * target.kv_bytes_per_token
    timed: dict[Path, float] = {}
    for place in extent.places:
        if view.node(place.node).up:
            path = Path(place.node, target.node)
            state = view.link(path)
            spare = max(1e-9, state.link.bytes_per_ms - state.demand_bytes_per_ms)
            timed[path] = state.link.latency_ms + size / spare
    return tuple(sorted(timed, key=lambda path: (timed[path], path)))


def _reachable(steps: Sequence[Step], target: Target) -> list[Step]:
    """What the engine can restore as things are: up to the first step that is not yet in its node's L3, or all of it."""
    kept: list[Step] = []
    for step in steps:
        if step.copy is not None and not target.reads_remote:
            break
        kept.append(step)
    return kept


def _turn_ms(steps: Iterable[Step], target: Target, links: Mapping[Path, Link]) -> float:
    """Exposed restore plus compute, at the cut that `costmodel.cut` finds: the same arithmetic that routes the turn."""
    runs = tuple(Run(step.start, step.tokens, step.tier, step.copy.path.source if step.copy else "") for step in steps)
    sources = {path.source: link for path, link in links.items()}
    site = Site(
        Residency(runs),
        target.restore,
        target.rates,
        target.queue_ms,
        target.kv_bytes_per_token,
        target.overlap_rho,
        sources,
    )
    cut = find_cut(target.prompt_tokens, site, target.cut_rule)
    return cut.exposed_ms + cut.compute_ms


def _path_times(copies: Sequence[Copy], links: Mapping[Path, Link], bytes_per_token: float) -> dict[Path, float]:
    times: dict[Path, float] = {}
    for copy in copies:
        times[copy.path] = times.get(copy.path, 0.0) + link_ms(links[copy.path], copy.tokens * bytes_per_token)
    return times
