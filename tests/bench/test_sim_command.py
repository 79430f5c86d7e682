"""`loadback sim` end to end, on the small traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.simulate.console import setup_of
from bench.simulate.experiments import Choice, exp1_experiments, fork_experiment
from bench.simulate.runner import Run, run_policy
from bench.simulate.settings import ASSUMED
from costmodel.roofline import DataType
from kvtier.prefetch.events import Trigger
from loadback.commands import build
from router.config.data_sheets import CONFIGS

DATA = Path(__file__).parents[1] / "data" / "traces"
SHAPE = {"ttft_s", "first_call_ttft_s", "later_call_ttft_s", "e2e_s", "tokens_per_s", "hit", "first_call_hit"} | {
    "later_call_hit",
    "tokens_by_tier",
}


def sim(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(build(), ["sim", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def last_json(output: str) -> dict[str, Any]:
    found = json.loads(output.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any]) -> None:
    assert set(found) >= SHAPE
    assert set(found["ttft_s"]) >= {"p50", "p90", "p99"}
    assert "p90" in found["e2e_s"]


@pytest.mark.slow
def test_weka_compares_policies_in_processes_of_their_own() -> None:
    arguments = ("weka", "--path", str(DATA / "weka_small.jsonl"), "-k", "4", "--horizon-s", "1500", "--json")
    together = last_json(sim(*arguments, "--policies", "cost,round_robin", "--jobs", "2"))
    alone = last_json(sim(*arguments, "--policies", "cost,round_robin", "--jobs", "1"))
    assert together == alone, "the same for the same seed, however many at once"
    assert (together["experiment"], together["seed"]) == ("weka", 1)
    assert list(together["policies"]) == ["cost", "round_robin"]
    for found in together["policies"].values():
        check(found)


@pytest.mark.slow
def test_mooncake_keeps_the_traces_times() -> None:
    arguments = ("mooncake", "--path", str(DATA / "mooncake_small.jsonl"), "--horizon-s", "300", "--json")
    output = sim(*arguments, "--policies", "mooncake")
    assert "configuration" not in output
    assert "nothing was counted: turns of the first 120 s warm up" in output
    line = last_json(output)
    assert line["experiment"] == "mooncake"
    assert line["policies"]["mooncake"] == {"turns": 0, "unfinished": 0, "given_up": 0}, (
        "the sample is over before the warm-up is"
    )


@pytest.mark.slow
def test_exp1_runs_its_configurations_at_equal_dram() -> None:
    output = sim("exp1", "--configs", "A,B", "--horizon-s", "660", "--json")
    assert "configuration" in output, "the head of a table whose rows are no policies"
    line = last_json(output)
    assert (line["experiment"], line["policy"], list(line["configs"])) == ("exp1", "cost", ["A", "B"])
    for found in line["configs"].values():
        check(found)
    a, b = line["setup"]["A"], line["setup"]["B"]
    assert a["l3_tokens_per_node"] == 0
    assert b["l3_tokens_per_node"] == pytest.approx(8 * (a["l2_tokens"] - b["l2_tokens"]), rel=1e-3), "each page once, not on 8"


@pytest.mark.slow
def test_a_pool_of_one_size_is_told_as_any_other_and_several_by_size() -> None:
    arguments = ("--policies", "cost", "--horizon-s", "60", "--json")
    one, both = (last_json(sim("scale", "--workers", sizes, *arguments)) for sizes in ("2", "2,4"))
    check(one["policies"]["cost"])
    assert list(both["configs"]) == ["2", "4"]
    assert both["configs"]["2"] == {"setup": one["setup"], "policies": one["policies"]}
    assert one["experiment"] == both["experiment"] == "scale"


SMALL = {
    "mooncake": ("--path", str(DATA / "mooncake_small.jsonl"), "--horizon-s", "300"),
    "scale": ("--workers", "2", "--horizon-s", "60"),
    "churn": ("-k", "4", "--topology", "2P1D", "--lose", "p0@615", "--join", "p2@630", "--horizon-s", "660"),
}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", SMALL)
def test_prefetch_is_on_and_off_on_pools_that_nodes_share(experiment: str) -> None:
    line = last_json(sim(experiment, *SMALL[experiment], "--prefetch", "off,on", "--json"))
    assert (line["experiment"], line["policy"]) == (experiment, "cost")
    size = "2 " if experiment == "scale" else ""
    assert list(line["prefetch"]) == [f"{size}off", f"{size}on"]
    off, on = line["setup"].values()
    assert (off.pop("prefetch"), on.pop("prefetch")) == ([], sorted(Trigger))
    assert off == on
    assert on["l3_tokens_per_node"] > 0
    assert on["l2_tokens"] > on["l1_tokens"], "else nothing is written on"


def test_wrong_words_are_refused_with_the_right_ones() -> None:
    assert "is none of cost, round_robin" in sim("weka", "--policies", "best", code=2)
    assert "neither conversation nor synthetic" in sim("mooncake", "--kind", "chat", code=2)
    assert "write 1P2D" in sim("fork", "--topology", "3X", code=2)
    assert "choose from cut_rule" in sim("fork", "--cost", "speed=9", code=2)
    assert "must be 0 (off) or positive" in sim("fork", "--cost", "switch_margin_ms=-1", code=2)
    assert "write p1@600" in sim("churn", "--lose", "worker1@5", code=2)
    assert "choose from event_lag_ms" in sim("churn", "--assume", "speed=9", code=2)
    assert "choose from weka" in sim("ablation", "--experiments", "chat", code=2)
    assert "choose one of cpu" in sim("fork", "--hardware", "b300", code=2)
    assert "--policy: 'best' is none of cost" in sim("exp1", "--policy", "best", code=2)
    assert "--policy: 'best' is none of cost" in sim("grid", "--policy", "best", code=2)
    for command in ("fork", "mooncake", "scale", "churn"):
        words = (command, "--policies", "cost,sticky", "--prefetch", "on")
        assert "give one policy beside --prefetch" in sim(*words, code=2)
    assert "--prefetch knows no 'onn'" in sim("exp1", "--prefetch", "onn", code=2)
    assert "A has none: give --configs B,C" in sim("exp1", "--prefetch", "on", code=2)
    assert "leave out --configs D" in sim("exp1", "--configs", "B,D", "--prefetch", "off,on", code=2)


def test_words_that_name_nothing_are_refused_before_the_run() -> None:
    assert "give all or some of cost" in sim("weka", "--policies", ",", code=2)
    assert "--configs names nothing: choose from A, B" in sim("exp1", "--configs", "", code=2)
    assert "--configs names nothing: choose from A, B" in sim("grid", "--configs", ",", code=2)
    assert "--experiments names nothing: choose from weka" in sim("ablation", "--experiments", "", code=2)
    assert "--prefetch names nothing: choose from on, off" in sim("fork", "--prefetch", ",", code=2)
    assert "--host-gb 0 has none" in sim("fork", "--prefetch", "on", "--host-gb", "0", code=2)


def test_figures_that_no_run_could_take_are_refused() -> None:
    for sizes in ("8,abc", "8,-3", "9", "0", ""):
        assert "give even sizes from 2 on" in sim("scale", "--workers", sizes, code=2)
    assert "--horizon-s wants a finite number" in sim("fork", "--horizon-s", "inf", code=2)
    assert "--cost: Expected `float`, got `str` - at `$.near_tie_ms`" in sim("fork", "--cost", "near_tie_ms=few", code=2)
    assert "no simulated turn has a deadline" in sim("fork", "--cost", "objective=slo", code=2)
    assert "no prefill worker is left when p3 is lost" in sim("churn", "--lose", "p0@9,p1@9,p2@9,p3@9", "--join", "", code=2)
    assert "p0@900 comes after the last call" in sim("churn", "--horizon-s", "700", code=2)


def test_models_have_the_weights_that_they_have() -> None:
    assert "knows no 'fp4': choose one of bf16, fp8 (--weights)" in sim("fork", "--model", "deepseek-v3", code=2)
    chosen = fork_experiment(Choice(model="deepseek-v3", weights=DataType.FP8), 1)
    assert (chosen.cluster.deployment.weight_type, chosen.cluster.deployment.compute_type) == ("fp8", "fp8")
    assert setup_of(chosen)["weights"] == "fp8"
    assert setup_of(fork_experiment(Choice(), 1))["weights"] == "fp4"


def test_an_accelerator_computes_as_it_can(tmp_path: Path) -> None:
    sheet = (CONFIGS / "hardware" / "h200.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(sheet.replace("{fp8: 1979, bf16: 989}", "{bf16: 989}"))
    assert fork_experiment(Choice(hardware=str(path)), 1).cluster.deployment.compute_type == "bf16"
    path.write_text(sheet.replace("{fp8: 1979, bf16: 989}", "{}"))
    assert f"{path}: tflops is empty" in sim("fork", "--hardware", str(path), code=2)


def test_a_context_that_holds_no_session_is_told_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    sheet = (CONFIGS / "models" / "kimi-k2.yaml").read_text()
    path.write_text(sheet.replace("context_tokens: 262144", "context_tokens: 8000"))
    assert "a context of 8,000 does not hold it" in sim("fork", "--model", str(path), code=2)
    assert "a context of 8,000 holds none" in sim("exp1", "--model", str(path), "--configs", "A", code=2)


def test_a_trace_that_cannot_be_read_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": []}\n{"timestamp": 1}\n')
    assert f"{path}, line 2: Object missing required field `input_length`" in sim("mooncake", "--path", str(path), code=2)
    assert f"{path}, line 1: Object missing required field `id`" in sim("weka", "--path", str(path), code=2)


def test_a_folder_that_cannot_be_made_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    assert "File exists" in sim("fork", "--out", str(tmp_path / "taken"), "--policies", "cost", code=1)


def test_a_run_in_which_no_reply_ended_has_no_price() -> None:
    found = run_policy(Run(fork_experiment(Choice(horizon_s=1), 1), "round_robin", 1))
    assert found["usd_per_million_tokens"] is None


def test_a_horizon_within_the_warm_up_is_refused_before_the_run() -> None:
    output = sim("exp1", "--horizon-s", "300", "--configs", "A", "--json", code=2)
    assert output == "turns of the first 600 s warm up: give a longer --horizon-s (ablation: --scale)\n"
    output = sim("fork", "--horizon-s", "5", "--policies", "cost", code=2)
    assert output == "sessions begin over the first 60 s: give a longer --horizon-s (ablation: --scale)\n"


def test_help_names_every_configuration_and_assumption() -> None:
    shown = CliRunner().invoke(build(), ["sim", "exp1", "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"}).output
    text = " ".join(shown.split())
    assert all(f"{name} is " in text for name in "CDF")
    assert "in all but H, which is C with" in text
    assert all(key in text for key in ASSUMED)


def test_setup_records_what_was_assumed() -> None:
    (experiment,) = exp1_experiments(Choice(assumed={"event_lag_ms": 7.0, "own_node": 1.0}), 1, ["B"]).values()
    setup = setup_of(experiment)
    assert set(ASSUMED) <= set(setup)
    assert (setup["event_lag_ms"], setup["own_node"]) == (7.0, True)
