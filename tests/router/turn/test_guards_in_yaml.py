"""Every guard is switched on and off by its key in the file, and a pool's workers get other turns for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from costmodel.params import GUARDS
from costmodel.values import Residency, Run, Tier, Turn, WorkerKey
from engine_adapters.base import EngineInfo, LoadReport
from router.config.load import parse_config
from router.fleet.ledger import Work
from router.fleet.pool import Pool
from router.turn.place import place

PREDICT = "predict_on_route"  # the router's own, not the policy's
ON_AND_OFF = dict(GUARDS) | {PREDICT: False}
FILE = """
pools:
  - hardware: {{prefill_base_ms: 10, prefill_ms_per_token: 0.02, prefill_ms_per_token2: 0, itl_ms_per_running: 1}}
    unified: [{{name: a, url: 'http://h:1'}}, {{name: b, url: 'http://h:2'}}]
policy: {{{policy}}}
"""
TURN = Turn("t", 10_000, 10)
COMPUTING = Work(0.0, 0.0)


class Scene(NamedTuple):
    """`a` and `b`: tokens that each holds. What is chosen over 24 turns with the guard, and without it."""

    on: object
    chosen_with: str
    chosen_without: str
    a: int = 0
    b: int = 0
    turn: Turn = TURN
    beside: tuple[str, ...] = ()  # what else is left on
    prepare: Callable[[Pool], None] = lambda pool: None
    age_ms: float = 0.0  # of what `a` holds
    idle_ms: float = 0.0


def behind(queue_ms: float, worker: str = "a") -> Callable[[Pool], None]:
    """As the engine reports it in tokens at 0.02 ms each, and as this gateway has booked it."""

    def prepare(pool: Pool) -> None:
        pool.workers[worker].ranks[0].book_prefill(0, Work(queue_ms / 0.02, queue_ms), 0.0)

    return prepare


def reported(waiting: int = 0, **kv: int) -> Callable[[Pool], None]:
    def prepare(pool: Pool) -> None:
        pool.workers["a"].ranks[0].reported(LoadReport(0, 0, waiting, **kv), 0.0)

    return prepare


def newcomer(pool: Pool) -> None:
    pool.workers["b"].rates.served = 100
    pool.workers["a"].ranks[0].book_prefill(0, COMPUTING, 0.0)


def replaced_in_30_s(pool: Pool) -> None:
    ledger = pool.workers["a"].ranks[0]
    ledger.turned_over(50_000, 0, 0.0)
    ledger.turned_over(150_000, 100_000, 0.0)


RETURNING = msgspec.structs.replace(TURN, prefill_before=WorkerKey("a"), decode_before=WorkerKey("a"))
SCENES = {
    "switch_margin_ms": Scene(20, "a", "b", a=8000, b=8750, turn=RETURNING),
    "kv_pressure_fraction": Scene(0.9, "b", "a", a=100, prepare=reported(kv_tokens_used=95_000, kv_tokens_capacity=100_000)),
    "waiting_limit": Scene(4, "b", "a", a=9000, prepare=reported(waiting=5)),
    "common_prefix_discount": Scene(
        1, "b", "a", a=9000, turn=msgspec.structs.replace(TURN, shared_tokens=9000), prepare=behind(10)
    ),
    "never_used_first": Scene("true", "ab", "a", beside=("near_tie_ms",), prepare=behind(2, "b")),
    "near_tie_ms": Scene(5, "ab", "a", beside=("never_used_first",), prepare=behind(2, "b")),
    "softmax_temperature": Scene(1, "ab", "a", a=5000, b=4900, beside=("near_tie_ms",)),
    "staleness_half_life_ms": Scene(1000, "b", "a", a=9000, b=5000, age_ms=3000),
    "ramp_turns": Scene(8, "b", "a", a=9000, prepare=newcomer),
    "replication_weight": Scene(1, "ab", "a", a=9000, turn=msgspec.structs.replace(TURN, prefix=7), prepare=behind(150)),
    "displacement_weight": Scene(1, "a", "b", a=9000, prepare=behind(250)),
    "eviction_discount": Scene(1, "b", "a", a=9000, b=5000, prepare=replaced_in_30_s, age_ms=60_000, idle_ms=60_000),
    PREDICT: Scene("true", "b", "a", a=9000, prepare=behind(1000)),
}


def chosen(guard: str, value: object) -> str:
    scene = SCENES[guard]
    others = {key: off for key, off in ON_AND_OFF.items() if key not in (guard, *scene.beside, PREDICT)}
    policy = ", ".join(f"{key}: {str(value).lower()}" for key, value in {**others, guard: value}.items())
    config = parse_config(FILE.format(policy=policy), "test", {})
    pool = Pool(config.pools[0], config)
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
    scene.prepare(pool)
    held = {
        WorkerKey("a"): Residency((Run(0, scene.a, Tier.L1),) if scene.a else (), scene.age_ms, scene.idle_ms),
        WorkerKey("b"): Residency((Run(0, scene.b, Tier.L1),) if scene.b else ()),
    }
    rng = random.Random(1)
    placed = [place(pool, scene.turn, held, failed=frozenset(), now_ms=0.0, rng=rng) for _ in range(24)]
    return "".join(sorted({placement.prefill.worker_id for placement in placed}))


def test_every_guard_has_a_scene() -> None:
    assert set(SCENES) == set(ON_AND_OFF)


@pytest.mark.parametrize("guard", SCENES)
def test_a_guard_is_switched_by_its_key(guard: str) -> None:
    scene = SCENES[guard]
    assert (chosen(guard, scene.on), chosen(guard, ON_AND_OFF[guard])) == (scene.chosen_with, scene.chosen_without)
    assert chosen(guard, "off") == scene.chosen_without, "as YAML says it"
