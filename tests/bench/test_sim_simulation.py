"""A run is deterministic, loses no turn, and no policy sees what has not happened yet."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import msgspec
import pytest

from bench.simulate.clients import Rota
from bench.simulate.cluster import Cluster, Engines, misjudge, parse_topology
from bench.simulate.figures import Price, figures
from bench.simulate.generated import fork, programbench
from bench.simulate.outcome import Outcome
from bench.simulate.settings import Settings
from bench.simulate.simulation import Simulation
from bench.simulate.workload import Call, SessionPlan, ThreadPlan, Workload
from costmodel.params import PolicyParams
from costmodel.policies import REGISTRY
from costmodel.policies.two_leg import TwoLegPolicy
from costmodel.roofline import Deployment
from costmodel.values import Fleet, Prefill, Turn, WorkerKey
from router.config.data_sheets import load_accelerator, load_model

SETTINGS = Settings(horizon_s=150, concurrency=10, ramp_s=20)


def cluster(topology: str = "2P2D", **engines: object) -> Cluster:
    deployment = Deployment(8, "fp8", "fp4", 1.0, memory_fraction=0.6, host_gb_per_accelerator=16)
    settings = msgspec.structs.replace(Engines(), **engines)
    return Cluster(parse_topology(topology), load_accelerator("h200"), load_model("kimi-k2"), deployment, settings)


def sessions(count: int = 14, seed: int = 5) -> Workload:
    return programbench(count, random.Random(seed), context_tokens=100_000)


class Oracle(TwoLegPolicy):
    """Looks ahead: it places a call by how long the thread's next prompt will be."""

    name = "oracle"

    def __init__(self, workload: Workload) -> None:
        super().__init__(PolicyParams())
        self._calls = {plan.name: plan.threads[0].calls for plan in workload.sessions}
        self._seen: Counter[str] = Counter()

    def _prefill(self, turn: Turn, fleet: Fleet, rng: random.Random) -> Prefill:
        self._seen[turn.thread] += 1
        calls = self._calls[turn.thread]
        following = calls[min(self._seen[turn.thread], len(calls) - 1)]
        return fleet.prefills[following.prompt_tokens % len(fleet.prefills)]


def simulate(policy: str = "cost", *, workload: Workload | None = None, topology: str = "2P2D", **changes: object) -> Outcome:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    made = REGISTRY[policy](PolicyParams())
    return Simulation(workload or sessions(), cluster(topology), made, settings, seed=3).run()


@pytest.mark.parametrize("topology", ["2P2D", "1P2D", "3U"])
def test_every_turn_that_was_sent_is_served(topology: str) -> None:
    outcome = simulate(topology=topology)
    assert (outcome.unfinished, outcome.given_up) == (0, 0)
    assert len(outcome.served) == len(outcome.decisions) > 50
    for turn in outcome.served:
        assert turn.arrived_ms < turn.first_ms <= turn.ended_ms
        assert 0 <= turn.cached_tokens < turn.prompt_tokens
        assert (turn.prefill == turn.decode) is (topology == "3U")


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate("power_of_two") == simulate("power_of_two")


def test_every_policy_is_asked_the_same_at_first() -> None:
    firsts = {policy: simulate(policy, horizon_s=20).decisions[0][:2] for policy in ("cost", "round_robin", "dynamo")}
    assert len(set(firsts.values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(REGISTRY))
def test_no_policy_sees_the_future(policy: str) -> None:
    """What clients send after T, and how long replies that run at T will be, must not change a decision before T."""
    t_ms = 80_000.0
    known = simulate(policy)
    shuffled = simulate(policy, workload=shuffle_future(sessions(), known, t_ms))
    before = [decision for decision in known.decisions if decision[0] < t_ms]
    assert len(before) > 30
    assert before == [decision for decision in shuffled.decisions if decision[0] < t_ms]
    assert known.decisions != shuffled.decisions, "the future was another"


@pytest.mark.slow
def test_one_that_does_is_caught() -> None:
    t_ms = 80_000.0

    def run(workload: Workload) -> Outcome:
        return Simulation(workload, cluster(), Oracle(workload), SETTINGS, seed=3).run()

    known = run(sessions())
    shuffled = run(shuffle_future(sessions(), known, t_ms))
    before = [decision for decision in known.decisions if decision[0] < t_ms]
    assert before != [decision for decision in shuffled.decisions if decision[0] < t_ms]


def shuffle_future(workload: Workload, outcome: Outcome, t_ms: float) -> Workload:
    """Calls not sent before T get other prompts and replies, replies under way get longer. Gaps stay: they began before."""
    sent = Counter(thread for at, thread, *_ in outcome.decisions if at < t_ms)
    ended = ends_by_thread(outcome)
    rng = random.Random(99)
    plans = []
    for plan in workload.sessions:
        calls = list(plan.threads[0].calls)
        for i in range(len(calls)):
            if i >= sent[plan.name]:
                prompt, page = rng.randrange(2_000, 90_000), 10_000_000 + rng.randrange(10**6)
                calls[i] = Call(prompt, rng.randrange(1, 900), (page, 30), calls[i].gap_ms)
            elif ended[plan.name][i] >= t_ms:
                calls[i] = msgspec.structs.replace(calls[i], output_tokens=calls[i].output_tokens + 500)
        plans.append(SessionPlan(plan.name, (ThreadPlan(tuple(calls)),)))
    return msgspec.structs.replace(workload, sessions=tuple(plans))


def ends_by_thread(outcome: Outcome) -> dict[str, list[float]]:
    """Of every call in the order of sending; a thread sends its next call only when the last has ended."""
    ends = {turn.arrived_ms: turn.ended_ms for turn in outcome.served}
    found: dict[str, list[float]] = defaultdict(list)
    for at, thread, *_ in outcome.decisions:
        found[thread].append(ends[at])
    return found


def test_beliefs_start_wrong_and_are_corrected() -> None:
    outcome = simulate(horizon_s=400, prior_error=0.3)
    errors = [abs(turn.predicted_ttft_ms - turn.ttft_ms) / turn.ttft_ms for turn in outcome.served]
    late = sorted(errors[len(errors) // 2 :])
    assert late[len(late) // 2] < 0.15


def test_misjudging_changes_every_figure_within_bounds() -> None:
    truth = cluster().truth
    wrong = misjudge(truth, random.Random(1), 0.3)
    pairs = [
        (truth.prefill.ms_per_token, wrong.prefill.ms_per_token),
        (truth.prefill.ms_per_token2, wrong.prefill.ms_per_token2),
        (truth.decode.itl_base_ms, wrong.decode.itl_base_ms),
        (truth.host.bytes_per_ms, wrong.host.bytes_per_ms),
        (truth.transfer.bytes_per_ms, wrong.transfer.bytes_per_ms),
    ]
    assert all(0.7 <= believed / true <= 1.3 and believed != true for true, believed in pairs)


def test_forced_migration_moves_a_session_when_it_comes_back() -> None:
    outcome = simulate(rota=Rota(5, 10_000.0), pin_grow_tokens=256)
    assert outcome.decisions[0][2] == WorkerKey("p0"), "all start on the first"
    by_thread: dict[str, list[WorkerKey]] = defaultdict(list)
    for _, thread, prefill, _ in outcome.decisions:
        by_thread[thread].append(prefill)
    assert any(len(set(places)) == 2 for places in by_thread.values())
    moved = [turn for turn in outcome.served if turn.prefill == WorkerKey("p1")]
    assert moved
    assert any(turn.first_call for turn in moved)


def test_an_ssd_serves_what_the_pool_could_not_hold() -> None:
    def run(ssd_gb: float) -> Outcome:
        pool = cluster(pool_gb_per_accelerator=0.1, ssd_gb_per_node=ssd_gb)
        settings = msgspec.structs.replace(SETTINGS, horizon_s=60)
        return Simulation(sessions(), pool, REGISTRY["round_robin"](PolicyParams()), settings, seed=3).run()

    without, behind = run(0.0), run(400.0)
    assert not sum(turn.disk_tokens for turn in without.served)
    assert sum(turn.disk_tokens for turn in behind.served) > 5_000
    assert behind.moved_bytes["l4_to_l3"] > 0
    for outcome in (without, behind):
        assert all(0 <= turn.cached_tokens < turn.prompt_tokens for turn in outcome.served)


def test_a_drained_worker_is_not_to_be_had_for_that_call() -> None:
    outcome = simulate("sticky", drain_share=1.0)
    last: dict[str, WorkerKey] = {}
    for _, thread, prefill, _ in outcome.decisions:
        assert last.get(thread) != prefill
        last[thread] = prefill
    assert all(turn.first_call for turn in outcome.served), "the workload moved every call"


def test_shorter_gaps_make_more_turns() -> None:
    assert len(simulate(gap_factor=0.0).decisions) > 1.2 * len(simulate().decisions)


def test_a_gateway_that_does_not_predict_knows_only_reports() -> None:
    """Every other turn of one instant is long: who does not see the last one takes turns, and sends all long ones one way."""
    plans = []
    for n in range(8):
        prompt = 60_000 if n % 2 else 1_280
        plans.append(SessionPlan(f"s{n}", (ThreadPlan((Call(prompt, 2, (n * 1000 + 1, prompt // 64)),)),)))
    busiest = {}
    for predict in (True, False):
        outcome = simulate(workload=Workload("burst", 64, tuple(plans)), concurrency=0, predict_on_route=predict, horizon_s=5)
        long = Counter(turn.prefill for turn in outcome.served if turn.prompt_tokens == 60_000)
        busiest[predict] = max(long.values())
    assert busiest == {True: 2, False: 4}


def test_routers_moves_are_no_first_calls() -> None:
    outcome = simulate("round_robin", resume_gap_s=1e6)
    assert sum(turn.first_call for turn in outcome.served) == len({thread for _, thread, *_ in outcome.decisions})


def test_subagents_of_a_fork_share_their_parents_prefix() -> None:
    workload = fork(3, random.Random(1), context_tokens=100_000, children=6)
    outcome = simulate("longest_prefix", workload=workload, concurrency=1)
    children = [turn for turn in outcome.served if turn.first_call and turn.prompt_tokens == 42_000]
    assert len(children) >= 6
    held = sorted(turn.cached_tokens for turn in children)
    assert held[len(held) // 2] == 40_000


def test_figures_add_up() -> None:
    outcome = simulate()
    found = figures(outcome, 20_000.0, Price(36.0))
    counted = [turn for turn in outcome.served if turn.arrived_ms >= 20_000]
    assert found["turns"] == len(counted)
    assert sum(found["tokens_by_tier"].values()) == sum(turn.prompt_tokens for turn in counted)
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p90"] <= found["ttft_s"]["p99"]
    assert found["hit"] == pytest.approx(sum(t.cached_tokens for t in counted) / sum(t.prompt_tokens for t in counted))
    assert found["usd_per_million_tokens"] == pytest.approx(36.0 / 3600 / found["tokens_per_s"] * 1e6)
    assert found["moved_bytes"]["prefill_to_decode"] > 0


def test_a_run_without_counted_turns_says_so() -> None:
    assert figures(simulate(horizon_s=30), 40_000.0, Price(1.0)) == {"turns": 0, "unfinished": 0, "given_up": 0}


@pytest.mark.parametrize("text", ["1P2D", "2p1d", "64U"])
def test_topologies(text: str) -> None:
    topology = parse_topology(text)
    assert len(topology.roles()) == topology.workers == {"1P2D": 3, "2p1d": 3, "64U": 64}[text]


@pytest.mark.parametrize("text", ["", "P", "0P1D", "1P", "2P2D2U"])
def test_what_is_no_topology(text: str) -> None:
    with pytest.raises(ValueError, match="1P2D"):
        parse_topology(text)


def test_a_reply_of_one_token_ends_with_its_prefill() -> None:
    call = Call(640, 1, (1, 10))
    workload = Workload("one", 64, (SessionPlan("a", (ThreadPlan((call,)),)),))
    (turn,) = simulate(workload=workload, horizon_s=5).served
    assert turn.first_ms == turn.ended_ms
