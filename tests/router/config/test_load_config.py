from pathlib import Path

import pytest

from router.config.load import ConfigError, load_config, parse_config

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
        ("pools: [{unified: [{url: 'http://h:1'}, {url: 'http://h:1'}]}]", ["same name"]),
        ("pools: []", ["pools"]),
        (MINIMAL + "\npolicy: {switch_margin_ms: .inf}", ["policy.switch_margin_ms", "finite"]),
        (MINIMAL + "\ntimeouts: {idle_s: .nan}", ["timeouts.idle_s", "finite"]),
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
            ["one model is listed twice"],
        ),
        ("pools: [{unified: [{url: 'http://h:1', kv_events: 'h:1'}]}]", ["tcp://"]),
    ],
)
def test_what_would_fail_later_is_refused_at_once(text, words):
    with pytest.raises(ConfigError) as fault:
        parse(text)
    assert all(word in str(fault.value) for word in words)


def test_an_empty_variable_is_no_key():
    text = MINIMAL + "\nauth: {admin_token: '${TOKEN}'}"
    with pytest.raises(ConfigError, match=r"TOKEN.*empty"):
        parse(text, TOKEN="")


def test_two_dollars_are_one():
    assert parse(MINIMAL + "\nauth: {admin_token: 'a$${B}'}").auth.admin_token == "a${B}"
