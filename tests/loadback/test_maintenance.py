"""Workers are taken out one after the other, only once their streams have ended, and the next only once the last is back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import httpx
import pytest

from bench.swarm.plan import Shape, ThreadPlan, plan_swarm
from bench.swarm.turns import TurnRecord
from costmodel.values import Role
from loadback import maintenance
from loadback.maintenance import Midway, take_out_in_turn
from loadback.pool_spec import NODE, POOL_NAME, Member

MEMBERS = tuple(
    Member(name, Role.PREFILL, f"http://127.0.0.1:{port}", port, Path("log"), 100 + port, pooled=True)
    for name, port in (("p0", 1), ("p1", 2))
)


class Gateway:
    """Its admin API: a worker has `inflight` streams when it is drained, and is discovered at the second look."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.added: list[dict[str, object]] = []
        self._inflight = {"p0": 1, "p1": 0}
        self._looks = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/admin/workers")
        if request.method == "GET":
            self._looks += 1
            state = "ready" if self._looks % 2 == 0 else "starting"
            return httpx.Response(200, json={"workers": [{"id": member.name, "state": state} for member in MEMBERS]})
        self.said.append(f"{request.method} {path}")
        if path.endswith("/drain"):
            name = path.split("/")[1]
            left, self._inflight[name] = self._inflight[name], 0
            return httpx.Response(200, json={"id": name, "inflight": left})
        if request.method == "POST":
            self.added.append(json.loads(request.content))
        return httpx.Response(200, json={})


async def test_each_is_drained_removed_and_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "OUT_S", 0.0)
    monkeypatch.setattr(maintenance, "POLL_S", 0.0)
    gateway = Gateway()
    async with httpx.AsyncClient(base_url="http://gateway", transport=httpx.MockTransport(gateway)) as http:
        await take_out_in_turn(http, MEMBERS)
    assert gateway.said == [
        *("POST /p0/drain", "POST /p0/drain", "DELETE /p0", "POST "),
        *("POST /p1/drain", "DELETE /p1", "POST "),
    ]
    assert gateway.added[1] == {
        "pool": POOL_NAME,
        "role": "prefill",
        "worker": {"url": "http://127.0.0.1:2", "name": "p1", "node": NODE, "bootstrap_port": 102},
    }


def test_a_third_of_the_turns_is_noticed_and_everything_is_passed_on() -> None:
    class Inner:
        def __init__(self) -> None:
            self.turns = 0
            self.states: list[str] = []

        def on_state(self, plan: ThreadPlan, state: str) -> None:
            self.states.append(state)

        def on_turn(self, record: TurnRecord) -> None:
            self.turns += 1

    plans = plan_swarm(Shape(sessions=3, turns=4, subagents=0), random.Random(1))
    inner = Inner()
    midway = Midway(inner, plans)
    midway.on_state(plans[0], "waiting")
    reached = []
    for number in range(12):
        midway.on_turn(TurnRecord("s1", "s1", number, False, 0.0))
        reached.append(midway.reached.is_set())
    assert (inner.turns, inner.states) == (12, ["waiting"])
    assert reached.index(True) == 3
