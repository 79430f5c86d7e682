from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.body.surrogates import mend_surrogates

pieces = st.lists(
    st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "u", "ud83d", "d", "é", '"', "\n", "x"]), max_size=12
)


@given(pieces)
def test_only_lone_surrogates_change_and_no_offset_moves(parts: list[str]) -> None:
    text = json.dumps("".join(parts)).encode()
    mended = mend_surrogates(text)
    assert len(mended) == len(text)
    expected = json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert msgspec.json.decode(mended, type=str).replace("\ufffd", "") == expected.replace("\ufffd", "")


def test_text_without_any_is_the_same_object() -> None:
    for text in (b'"x"', b'"\\u00e9"'):
        assert mend_surrogates(text) is text


def test_an_escaped_backslash_begins_no_escape() -> None:
    assert mend_surrogates(rb'"\\ud83d \\\ud83d \ud83d\ude00"') == rb'"\\ud83d \\\ufffd \ud83d\ude00"'
