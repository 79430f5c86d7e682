import math
from pathlib import Path

import msgspec
import pytest

from costmodel.values import Residency, Run, Tier, Turn, WorkerKey
from engine_adapters.base import EngineInfo
from router.config.load import ConfigError, load_config, parse_config
from router.config.tree import HardwareConfig, LinkConfig
from router.fleet.pool import Pool
from router.turn.place import explain

MINIMAL = "pools: [{unified: [{url: 'http://127.0.0.1:30000'}]}]"


def parse(text: str, **environ: str):
    return parse_config(text, "test.yaml", environ)


def test_a_minimal_file_is_enough():
    config = parse(MINIMAL)
    assert config.listen.port == 8000
    assert config.pools[0].unified[0].worker_id == "127.0.0.1:30000"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pools: [{unifid: []}]", ["pools.0.unifid", "unknown key"]),
        (MINIMAL + "\nlisten: {prot: 1}", ["listen.prot", "unknown key"]),
        (MINIMAL + "\npolicy: {name: best}", ["policy", "unknown policy 'best'", "round_robin"]),
        ("pools: [{prefill: [{url: 'http://h:1'}]}]", ["pools.0", "needs both"]),
        ("pools: [{unified: [{url: 'h:1'}]}]", ["pools.0.unified.0.url", "expected a URL"]),
        ("pools: [{unified: [{url: 'http://h:1/v1'}]}]", ["scheme, host and port only"]),
        ("pools: [{unified: [{url: 'http://h:1'}, {url: 'http://h:1'}]}]", ["same name or address, 'h:1': set `name`"]),
        (
            "pools: [{unified: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:1'}, {name: c, url: 'http://h:2'}]}]",
            ["one worker URL is listed twice, 'http://h:1'"],
        ),
        ("pools: [{unified: [{url: 'http://h:1'}]}, {unified: [{url: 'http://h:2'}]}]", ["the same name, 'default'"]),
        ("pools: []", ["pools"]),
        (MINIMAL + "\npolicy: {switch_margin_ms: .inf}", ["policy.switch_margin_ms", "finite"]),
        (MINIMAL + "\ntimeouts: {idle_s: .nan}", ["timeouts.idle_s", "finite"]),
        (MINIMAL + "\npolicy: {switch_margin_ms: on}", ["policy.switch_margin_ms", "expected a number, not true"]),
        (MINIMAL + "\nseed: true", ["seed", "expected a number, not true"]),
        (MINIMAL + "\npolicy: {objective: slo, classes: {' fast': {}}}", ["policy.classes", "should match"]),
        (MINIMAL + "\nauth: {api_keys: abc}", ["auth.api_keys: expected a list"]),
        ("pools: [{models: tiny, unified: [{url: 'http://h:1'}]}]", ["pools.0.models: expected a list"]),
        ("pools: 3", ["pools: expected a list"]),
        (MINIMAL + "\nlisten: 3", ["listen: expected a mapping of keys to values"]),
        (MINIMAL + "\npolicy: {classes: 3}", ["policy.classes: expected a mapping of keys to values"]),
        (MINIMAL + "\nauth: {admin_token: '${K'}", ["auth.admin_token: ${K is no variable: write ${NAME}"]),
        (MINIMAL + "\nauth: {api_keys: ['a${key}']}", ["auth.api_keys.0: ${key is no variable"]),
        ("[1]", ["expected a mapping"]),
        ("a: [", ["not YAML"]),
    ],
)
def test_faults_name_the_key_and_the_fix(text, words):
    with pytest.raises(ConfigError) as fault:
        parse(text)
    assert all(word in str(fault.value) for word in ["test.yaml", *words])


def test_every_fault_is_told_at_once():
    with pytest.raises(ConfigError) as fault:
        parse("pools: [{unified: [{url: x}]}]\nlisten: {port: 70000, a: 1}")
    assert len(str(fault.value).splitlines()) == 3


def test_keys_come_from_the_environment():
    text = MINIMAL + "\nauth: {api_keys: ['${CLIENT_KEY}']}"
    assert parse(text, CLIENT_KEY="s3cret").auth.api_keys == ("s3cret",)
    with pytest.raises(ConfigError, match="CLIENT_KEY"):
        parse(text)


def test_every_missing_variable_is_told_at_once():
    text = MINIMAL + "\nauth: {api_keys: ['${ONE}', '${TWO}'], admin_token: '$$${THREE}'}"
    with pytest.raises(ConfigError) as fault:
        parse(text, TWO="two", THREE="")
    assert str(fault.value).splitlines() == [
        "test.yaml: auth.api_keys.0: ${ONE} is not set in the environment",
        "test.yaml: auth.admin_token: ${THREE} is empty in the environment",
    ]
    assert parse(text, ONE="1", TWO="2", THREE="3").auth.admin_token == "$3"


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "\nauth: {api_keys: ['']}", ["auth.api_keys.0"]),
        (MINIMAL + "\nauth: {admin_token: ''}", ["auth.admin_token"]),
        (MINIMAL + "\nlisten: {port: 1}\nlisten: {port: 2}", ["'listen' is given twice"]),
        ("pools: [{unified: [{url: 'http://h:1', bootstrap_port: 1}]}]", ["are for prefill"]),
        (
            "pools: [{name: a, models: [m], unified: [{url: 'http://h:1'}]}, "
            "{name: b, models: [m], unified: [{url: 'http://h:2'}]}]",
            ["one model is listed twice, 'm':"],
        ),
        (
            "pools: [{name: a, models: [m], unified: [{name: u0, url: 'http://h:1'}]}, "
            "{name: b, models: [n], unified: [{name: u0, url: 'http://h:2'}]}]",
            ["workers of two pools have the same name, 'u0',"],
        ),
        ("pools: [{unified: [{url: 'http://h:1', kv_events: 'h:1'}]}]", ["tcp://"]),
        (MINIMAL + "\nagents: [{node: a, host: h, port: 1}, {node: a, host: g, port: 1}]", ["have the same node, 'a':"]),
    ],
)
def test_what_would_fail_later_is_refused_at_once(text, words):
    with pytest.raises(ConfigError) as fault:
        parse(text)
    assert all(word in str(fault.value) for word in words)


PORTS = {
    "pools: [{prefill: [{url: 'http://h:1', bootstrap_port: PORT}], decode: [{url: 'http://h:2'}]}]": "bootstrap_port",
    "pools: [{unified: [{url: 'http://h:PORT'}]}]": "pools.0.unified.0.url",
    "pools: [{unified: [{url: 'http://h:1', kv_events: 'tcp://h:PORT'}]}]": "pools.0.unified.0.kv_events",
    "pools: [{unified: [{url: 'http://h:1', kv_replay: 'tcp://h:PORT'}]}]": "pools.0.unified.0.kv_replay",
    MINIMAL + "\nagents: [{node: a, host: h, port: PORT}]": "agents.0.port",
    MINIMAL + "\nagents: [{node: a, host: h, port: 1, control_port: PORT}]": "agents.0.control_port",
    MINIMAL + "\numbp_master: {address: 'h:PORT'}": "umbp_master.address",
    MINIMAL + "\nindex: {redis: {urls: ['redis://h:PORT']}}": "index.redis",
}


@pytest.mark.parametrize("port", [0, 99999])
@pytest.mark.parametrize("text", PORTS)
def test_a_port_that_is_none_is_refused_wherever_it_stands(text: str, port: int) -> None:
    parse(text.replace("PORT", "65535"))
    with pytest.raises(ConfigError, match=PORTS[text]):
        parse(text.replace("PORT", str(port)))


def test_an_empty_variable_is_no_key():
    text = MINIMAL + "\nauth: {admin_token: '${TOKEN}'}"
    with pytest.raises(ConfigError, match=r"TOKEN.*empty"):
        parse(text, TOKEN="")


def test_two_dollars_are_one():
    assert parse(MINIMAL + "\nauth: {admin_token: 'a$${B}'}").auth.admin_token == "a${B}"


def test_off_is_nought_and_on_is_true_where_that_is_meant():
    policy = parse(
        MINIMAL + "\npolicy: {switch_margin_ms: off, ramp_turns: off, never_used_first: off, predict_on_route: on}"
    ).policy
    assert (policy.switch_margin_ms, policy.ramp_turns, policy.never_used_first, policy.predict_on_route) == (0, 0, False, True)


NUMBERS = [key for key, field in HardwareConfig.model_fields.items() if field.annotation is float]
LINKS = [key for key, field in HardwareConfig.model_fields.items() if field.annotation is LinkConfig]
WRITTEN = [f"{key}: {{}}" for key in NUMBERS] + [
    f"{link}: {{{{{words}}}}}" for link in LINKS for words in ("gb_per_s: {}", "gb_per_s: 10, latency_ms: {}")
]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize(
    "value", ["-1", ".nan", ".inf", "-.inf", "1e-320", "1e-9", "0", "0.5", "1e9", "1e308", "true", "'x'", "[]"]
)
def test_any_hardware_figure_is_refused_or_makes_finite_costs(written: str, value: str) -> None:
    text = f"pools: [{{hardware: {{{written.format(value)}}}, prefill: [{{name: p, url: 'http://h:1'}}], decode: [{{url: 'http://h:2'}}]}}]"
    try:
        config = parse(text)
    except ConfigError as error:
        if f"pools.0.hardware.{written.partition(':')[0]}" in str(error):
            return
        raise
    pool = Pool(config.pools[0], config)
    for worker in pool.workers.values():
        worker.discovered(EngineInfo("x", ("tiny",), page_size=16))
    runs = tuple(Run(4096 * n, 4096, tier) for n, tier in enumerate(Tier))
    held = {WorkerKey("p"): Residency(runs, 100.0, 100.0)}
    for _ in range(2):
        terms = explain(pool, Turn("t", 100_000, 1000), held, 1000.0).decision.chosen.terms
        assert all(0 <= term < math.inf for term in msgspec.structs.asdict(terms).values())
        for worker in pool.workers.values():
            for _ in range(20):
                worker.rates.observe_prefill(1000, 50.0, 100, 1.0)
                worker.rates.observe_decode(3, 20.0, 500.0, 1.0)
            assert worker.calibration()
