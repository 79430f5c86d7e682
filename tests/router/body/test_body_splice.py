from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.body.splice import splice


def joined(body: bytes, members: bytes) -> bytes:
    return b"".join(splice(body, members))


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b"{}", b'{"x":1}'),
        (b"{ \n}", b'{ \n"x":1}'),
        (b'{"a":1}', b'{"a":1,"x":1}'),
        (b'{"a":1 }\r\n', b'{"a":1 ,"x":1}'),
        (b'{"a":{}}', b'{"a":{},"x":1}'),
        (b'{"a":"{"}', b'{"a":"{","x":1}'),
    ],
)
def test_members_go_before_the_final_brace(body: bytes, spliced: bytes) -> None:
    assert joined(body, b'"x":1') == spliced


def test_nothing_to_add_is_the_body_itself() -> None:
    body = b'{"a":1} '
    assert splice(body, b"")[0] is body


def test_a_large_body_is_not_copied() -> None:
    body = b'{"a":"' + b"x" * 100_000 + b'"}'
    parts = splice(body, b'"x":1')
    assert b"".join(parts) == body[:-1] + b',"x":1}'
    assert isinstance(parts[0], memoryview)
    assert parts[0].obj is body


def test_only_objects_take_members() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        splice(b"[1]", b'"x":1')


keys = st.text(max_size=3)
values = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=6
)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.dictionaries(keys, values), st.sampled_from([None, 1]), st.sampled_from(["", " ", "\n\t \r"]))
def test_the_object_gains_exactly_the_members(value: dict[str, object], indent: int | None, trailing: str) -> None:
    body = (json.dumps(value, indent=indent) + trailing).encode()
    assert json.loads(joined(body, b'"x":1,"y":[2]')) == value | {"x": 1, "y": [2]}
