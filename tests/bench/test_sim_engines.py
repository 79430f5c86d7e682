"""The simulated pool tells what the emulated server would tell, and hands pairs over as it does."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from bench.simulate.agenda import Agenda
from bench.simulate.engines import EnginePool, Listener, load_report
from costmodel.values import WorkerKey
from engine_adapters.emulator.model.engine import EngineModel
from engine_adapters.emulator.model.params import EngineParams, EngineRole
from engine_adapters.emulator.model.request import EngineRequest
from engine_adapters.emulator.wire.info import loads
from engine_adapters.sglang.loads import from_loads
from kvtier.index.events import BlocksStored

P, D, U = WorkerKey("p0"), WorkerKey("d0"), WorkerKey("u0")


def pool(params: dict[WorkerKey, EngineParams]) -> tuple[EnginePool, Agenda, list[tuple[Any, ...]]]:
    """With a list of what it tells, each line with its time."""
    agenda = Agenda()
    heard: list[tuple[Any, ...]] = []
    listener = Listener(
        lambda rid, cached: heard.append((agenda.now_ms, "prefilled", rid, cached.tokens)),
        lambda rid, cached: heard.append((agenda.now_ms, "first", rid)),
        lambda rid, complete: heard.append((agenda.now_ms, "finished", rid, complete)),
        lambda key, events: heard.append((agenda.now_ms, "published", key, events)),
    )
    return EnginePool(params, agenda, listener), agenda, heard


def request(rid: str, output: int = 3) -> EngineRequest:
    return EngineRequest(rid, 64, output, output, tuple(range(4)))


def told(heard: list[tuple[Any, ...]], what: str) -> list[tuple[Any, ...]]:
    return [line for line in heard if line[1] == what]


@pytest.mark.parametrize("role", [EngineRole.PREFILL, EngineRole.DECODE, EngineRole.UNIFIED])
def test_reports_are_what_v1_loads_says(role: EngineRole) -> None:
    params = EngineParams(role=role)
    model = EngineModel(params)
    for n in range(3):
        model.submit(EngineRequest(f"r{n}", 5_000, 4, 4, (), paired=role is not EngineRole.UNIFIED), 0.0)
        if role is EngineRole.PREFILL:
            model.pair(f"r{n}", 0.0)
    server = SimpleNamespace(params=params, driver=SimpleNamespace(model=model))
    (wire,) = from_loads(json.dumps(loads(server, {"all"})).encode(), "http://x")  # type: ignore[arg-type]
    report = load_report(model.load(), params)
    for field in ("running_requests", "waiting_requests", "waiting_uncached_tokens", "kv_tokens_used", "kv_tokens_capacity"):
        assert getattr(report, field) == getattr(wire, field), field
    assert report.prefill_busy_us_total == wire.prefill_busy_us_total
    assert report.prefill_uncached_tokens_total == wire.prefill_uncached_tokens_total


def test_a_pair_hands_over_and_the_client_hears_decode() -> None:
    engines, agenda, heard = pool({P: EngineParams(role=EngineRole.PREFILL), D: EngineParams(role=EngineRole.DECODE)})
    engines.submit(request("a"), P, D)
    while agenda.step():
        pass
    ((prefilled_ms, *_),) = told(heard, "prefilled")
    ((first_ms, *_),) = told(heard, "first")
    ((finished_ms, _, _, complete),) = told(heard, "finished")
    assert 0 < prefilled_ms <= first_ms < finished_ms
    assert complete
    assert engines.moved_bytes()["prefill_to_decode"] == 64 * EngineParams().kv_bytes_per_token
    stored = [event for line in told(heard, "published") for event in line[3] if isinstance(event, BlocksStored)]
    assert [event.hashes for event in stored] == [tuple(range(4))]
    assert {line[2] for line in told(heard, "published")} == {P}, "a decode worker without a cache says nothing"


def test_a_unified_worker_prefills_with_its_first_token() -> None:
    engines, agenda, heard = pool({U: EngineParams()})
    engines.submit(request("a", output=1), U, U)
    while agenda.step():
        pass
    assert [line[1] for line in heard if line[1] != "published"] == ["prefilled", "first", "finished"]
    assert engines.moved_bytes()["prefill_to_decode"] == 0


def test_a_second_prompt_finds_the_first_ones_pages() -> None:
    engines, agenda, heard = pool({U: EngineParams()})
    for rid in ("a", "b"):
        engines.submit(request(rid), U, U)
        while agenda.step():
            pass
    assert [line[3] for line in told(heard, "prefilled")] == [0, 48]
