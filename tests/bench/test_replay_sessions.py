import io
import json
from pathlib import Path

import pytest
import zstandard

from bench.replay.recording import Shortening
from bench.replay.sessions import read_sessions

DATA = Path(__file__).parents[1] / "data" / "lmcache_agent"


def lines_of(name: str) -> list[str]:
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO((DATA / f"{name}.jsonl.zst").read_bytes())).read()
    return raw.decode().splitlines()


@pytest.mark.parametrize("name", ["miniswe", "magentic", "taubench"])
def test_every_call_of_a_trace_is_a_turn_and_chats_only_grow(name):
    sessions = read_sessions(lines_of(name))
    assert sum(len(session.turns) for session in sessions) == len(lines_of(name))
    for session in sessions:
        for turn in range(1, len(session.turns)):
            earlier, later = session.messages(turn - 1, 200), session.messages(turn, 200)
            assert later[: len(earlier)] == earlier


def test_the_users_text_is_the_traces():
    session = max(read_sessions(lines_of("miniswe")), key=lambda found: len(found.turns))
    assert len(session.turns) == 30
    calls = [json.loads(line) for line in lines_of("miniswe")]
    inputs = sorted((c["timestamp"], c["input"]) for c in calls if c["session_id"] == session.session_id)
    assert inputs[-1][1].startswith(session.turns[0])
    assert inputs[-1][1].endswith(session.turns[-1])


def test_shortening_looks_only_at_the_string():
    shorten = Shortening(text_chars=5, tools=1)
    body = {
        "messages": [
            {"role": "user", "content": "abcdefgh"},
            {"role": "tool", "content": [{"type": "text", "text": "abcdefgh"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "a-long-name", "description": "123456"}}, {"type": "other"}],
    }
    cut = shorten.apply(body)
    assert cut["messages"][0]["content"] == cut["messages"][1]["content"][0]["text"] == "abcde"
    assert cut["tools"] == [{"type": "function", "function": {"name": "a-long-name", "description": "12345"}}]
    assert (shorten.cut.strings, shorten.cut.chars, shorten.cut.tools) == (3, 7, 1)


def test_json_arguments_stay_json():
    arguments = json.dumps({"path": "x" * 50})
    body = {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]}
    cut = Shortening(text_chars=10).apply(body)
    assert json.loads(cut["messages"][0]["tool_calls"][0]["function"]["arguments"]) == {"path": "x" * 10}
