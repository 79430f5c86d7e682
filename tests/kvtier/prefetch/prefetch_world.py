"""A small world to plan in: nodes, workers, prompts with copies, and an executor that only remembers what it was told to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from costmodel.values import Link, PrefillRates, Tier, WorkerKey
from kvtier.prefetch import events as ev
from kvtier.prefetch.events import Event
from kvtier.prefetch.job import Job
from kvtier.prefetch.moves import CancelMove, Hold, Move, Release, Stage, Warm
from kvtier.prefetch.params import PrefetchParams
from kvtier.prefetch.planner import Planner
from kvtier.prefetch.view import Extent, LinkState, NodeState, Path, Place, Target

PAGE = 16
TOKEN_BYTES = 1000.0
RATES = PrefillRates(5.0, 0.5)
RESTORE = {Tier.L2: Link(0.05, 50_000.0), Tier.L3: Link(0.1, 60_000.0)}


@dataclass
class World:
    """The view, to be changed by tests. Worker `w1` runs on node `n1`, unless `node_of` says otherwise."""

    link_bytes_per_ms: float = 10_000.0
    extents: dict[str, tuple[Extent, ...]] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)  # subject -> number of the worker that the cost model names
    node_of: dict[str, str] = field(default_factory=dict)  # by worker number
    queue_ms: dict[str, float] = field(default_factory=dict)  # by worker number
    demand: dict[Path, float] = field(default_factory=dict)
    waiting: set[Path] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    free_bytes: int = 1 << 40
    harm: float = 0.0
    stage_bytes: float = inf
    waiting_turns: int = 0
    warmable: bool = False
    change: int = 0
    device_tokens: int = 0
    margin_ms: float = inf
    reads_remote: bool = False
    sized: bool = True
    asked: int = 0  # how often `target` was asked

    def remote(self, subject: str, tokens: int, node: str = "n2", *, to: str = "1", tier: Tier = Tier.L3) -> None:
        """The subject's whole prompt lies in one place, and its next turn would go to worker `to`."""
        self.extents[subject] = (Extent(0, tokens, (Place(node, tier),)),)
        self.prompts[subject] = tokens + 100
        self.chosen[subject] = to

    def target(self, subject: str, worker: WorkerKey | None) -> Target | None:
        self.asked += 1
        if subject not in self.extents:
            return None
        number = worker.worker_id[1:] if worker is not None else self.chosen[subject]
        return Target(
            WorkerKey(f"w{number}"),
            self.node_of.get(number, f"n{number}"),
            self.prompts[subject],
            sum(extent.tokens for extent in self.extents[subject]) // PAGE * PAGE,
            self.extents[subject],
            RATES,
            RESTORE,
            TOKEN_BYTES,
            sized=self.sized,
            page_tokens=PAGE,
            queue_ms=self.queue_ms.get(number, 0.0),
            waiting_turns=self.waiting_turns,
            warmable=self.warmable,
            device_tokens=self.device_tokens,
            reads_remote=self.reads_remote,
            margin_ms=self.margin_ms,
        )

    def link(self, path: Path) -> LinkState:
        return LinkState(Link(0.1, self.link_bytes_per_ms), self.demand.get(path, 0.0), path in self.waiting)

    def node(self, node: str) -> NodeState:
        return NodeState(self.free_bytes, self.harm, node not in self.lost, self.stage_bytes)

    def changes(self, worker: WorkerKey) -> int:
        return self.change


@dataclass
class Drive:
    """A planner with a clock and an executor."""

    planner: Planner
    world: World
    now_ms: float = 0.0
    stages: dict[int, Stage] = field(default_factory=dict)  # in flight
    warms: dict[int, Warm] = field(default_factory=dict)
    holds: dict[int, Hold] = field(default_factory=dict)
    log: list[Move] = field(default_factory=list)

    def tell(self, event: Event) -> list[Move]:
        return self.take(self.planner.plan(event, self.world, self.now_ms))

    def take(self, moves: list[Move]) -> list[Move]:
        for move in moves:
            self.log.append(move)
            if isinstance(move, Stage):
                self.stages[move.move] = move
            elif isinstance(move, Warm):
                self.warms[move.move] = move
            elif isinstance(move, CancelMove):
                assert (self.stages.pop(move.move, None) or self.warms.pop(move.move, None)) is not None
            elif isinstance(move, Hold):
                assert move.job not in self.holds
                self.holds[move.job] = move
            elif isinstance(move, Release):
                del self.holds[move.job]
        return moves


def drive(world: World | None = None, **params: object) -> Drive:
    return Drive(Planner(PrefetchParams(**params)), world or World())  # type: ignore[arg-type]


def arrive(run: Drive) -> None:
    """All that is on its way between nodes."""
    for move in sorted(run.stages):
        told = run.stages.pop(move)
        run.tell(ev.MoveEnded(move, told.size_bytes))


def only_job(run: Drive) -> Job:
    (job,) = run.planner.board.active.values()
    return job
