"""Whatever is wrong with a file is one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtier.settings.yaml_file import YamlFault, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: ]", "not YAML: expected the node content, but found ']' while parsing a block node, in line 1, column 4"),
        ("a: [", "not YAML: expected the node content, but found '<stream end>' while parsing a flow node, in line 1"),
        ("a: 1\nb: 2\na: 3", "not YAML: key 'a' is given twice, in line 3, column 1"),
        ("a: {b: 1, b: 2}", "not YAML: key 'b' is given twice, in line 1, column 11"),
        ("a: \t- b\n  c", "not YAML: found character '\\t' that cannot start any token while scanning for the next token"),
        ("[1, 2]: 3", "not YAML: a key must be one word, in line 1, column 1"),
        ("{1: 2}: 3", "not YAML: a key must be one word, in line 1, column 1"),
        ("a: 2001-99-99", "not YAML: month must be in 1..12"),
        ("a: \0", "not YAML: unacceptable character #x0000: special characters are not allowed"),
        ("[" * 5000, "not YAML: nested too deep"),
        ("a: !!python/object:os.system {}", "not YAML: could not determine a constructor for the tag"),
    ],
)
def test_a_fault_is_one_line_and_says_where(text: str, told: str) -> None:
    with pytest.raises(YamlFault) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"node: \xe9")
    told = {"absent.yaml": "No such file or directory", ".": "Is a directory", "latin.yaml": "not UTF-8: "}
    for name, words in told.items():
        with pytest.raises(YamlFault, match=words):
            read_yaml(tmp_path / name)


def test_what_is_right_is_plain_data() -> None:
    assert parse_yaml("a: {b: [1, x]}\nc: &c 2.5\nd: *c") == {"a": {"b": [1, "x"]}, "c": 2.5, "d": 2.5}
    assert parse_yaml("") is None
