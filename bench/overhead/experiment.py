"""Every peer under every load, interleaved over rounds so that a noisy minute hits all alike; the quietest run counts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.overhead.child import Child
from bench.overhead.load import LoadResult, Target, run_load
from bench.overhead.loads import Load, Part
from bench.overhead.machine import LOAD_CORE, ROUTER_CORE, check_cores, wait_for_quiet
from bench.overhead.native import Programs, build
from bench.overhead.peers import HOST, MODEL, NotThere, Peer, Ports
from engine_adapters.launch.ports import free_ports

_READY_S = 60.0
_QUIET_WAIT_S = 4.0
_QUIET_NOISE = 0.1  # a run below this need not be repeated
_WARM_BODY = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "warm"}], "max_tokens": 2})
_PORT_RANGE = 100


class Outcome(msgspec.Struct, eq=False):
    """One peer's quietest run of each load; or why it was left out."""

    best: dict[Load, LoadResult] = {}
    skipped: str | None = None


Tell = Callable[[str], None]


def run_experiment(
    peers: Sequence[Peer], loads: Sequence[Load], *, seconds: float, rounds: int, first_port: int, tell: Tell
) -> dict[Peer, Outcome]:
    """Starts and ends everything that it needs. Raises MachineError, BuildError, ChildError, LoadError or NoFreePort."""
    check_cores()
    with tempfile.TemporaryDirectory(prefix="loadback-overhead-") as name:
        folder = Path(name)
        programs = build(folder)
        ports = _ports(first_port)
        workers = [str(programs.mock_workers), "-p", _joined(ports.plain), "-P", _joined(ports.prefill)]
        with Child("the mock workers", workers, LOAD_CORE, folder / "workers.log") as mock:
            mock.wait_ready(ports.plain[0], _READY_S, body=_WARM_BODY)
            bench = _Bench(programs, ports, mock, folder, seconds, tell)
            for number in range(rounds):
                tell(f"round {number + 1} of {rounds}")
                bench.round(peers, [load for load in loads if number == 0 or load.repeated])
            return bench.outcomes


class _Bench:
    def __init__(self, programs: Programs, ports: Ports, mock: Child, folder: Path, seconds: float, tell: Tell) -> None:
        self.outcomes: dict[Peer, Outcome] = {}
        self._programs = programs
        self._ports = ports
        self._mock = mock
        self._folder = folder
        self._seconds = seconds
        self._tell = tell

    def round(self, peers: Sequence[Peer], loads: Sequence[Load]) -> None:
        """Each load on each peer once, but for what was quiet enough before."""
        for load in loads:
            for peer in peers:
                if load.part is Part.RSS and not peer.routes:
                    continue
                outcome = self.outcomes.setdefault(peer, Outcome())
                known = outcome.best.get(load)
                if outcome.skipped is None and (known is None or known.noise > _QUIET_NOISE):
                    self._measure(peer, load, outcome)

    def _measure(self, peer: Peer, load: Load, outcome: Outcome) -> None:
        if not peer.routes:
            target = Target(_url(self._ports.plain[0]), self._mock.pid, self._mock.pid)
            self._keep(peer, load, outcome, self._run(load, target))
            return
        try:
            command = peer.command(self._ports, self._folder)
        except NotThere as error:
            outcome.skipped = str(error)
            self._tell(f"{peer.name}: left out: {error}")
            return
        with Child(peer.name, command, ROUTER_CORE, self._folder / f"{peer.name}.log") as router:
            router.wait_ready(self._ports.router, _READY_S, body=_WARM_BODY)
            target = Target(_url(self._ports.router), router.pid, self._mock.pid)
            self._keep(peer, load, outcome, self._run(load, target))

    def _run(self, load: Load, target: Target) -> LoadResult:
        wait_for_quiet(_QUIET_WAIT_S)
        options, limit_s = load.command(self._seconds)
        return run_load(self._programs.load_generator, target, options, limit_s)

    def _keep(self, peer: Peer, load: Load, outcome: Outcome, run: LoadResult) -> None:
        figures = "  ".join(f"{name} {value:.3f}" for name, value in load.figures(run).items())
        failed = f"  {run.errors} ERRORS" if run.errors else ""
        self._tell(f"{load.part:<8}{load.name:<16}{peer.name:<18}{figures}  noise {run.noise:.2f}{failed}")
        known = outcome.best.get(load)
        if known is None or run.noise < known.noise:
            outcome.best[load] = run


def _ports(first: int) -> Ports:
    router, metrics, *workers = free_ports(8, first, first + _PORT_RANGE - 1)
    return Ports(router, metrics, tuple(workers[:4]), tuple(workers[4:]))


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _joined(ports: Sequence[int]) -> str:
    return ",".join(str(port) for port in ports)
