"""Our token ids are the engines', for every recorded request at full length, agent sessions and chats that try the corners.

SGLang's and vLLM's own code answers in its own environment; ours go from state to state as the gateway's do.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine_adapters.launch.vllm import VllmSpec
from engine_adapters.prompt import vllm_messages, vllm_responses
from engine_adapters.prompt.model import PromptModel
from engine_adapters.prompt.profile import PromptProfile
from engine_adapters.prompt.sglang_chat import SglangProfile
from engine_adapters.prompt.sglang_messages import messages_as_chat
from engine_adapters.prompt.sglang_responses import responses_as_chat
from engine_adapters.prompt.state import PromptState
from engine_adapters.prompt.vllm_chat import VllmProfile
from kvtier.hashing.sglang import Chain

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine_adapters" / "prompt"))
sys.path.insert(0, str(Path(__file__).parent / "truth"))

from asking import engine_ids  # noqa: E402
from chat_bodies import agent_sessions, cornered_bodies, random_bodies, recorded  # noqa: E402

pytestmark = [pytest.mark.engines, pytest.mark.slow]

MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
TEMPLATES = ROOT / "tests" / "data" / "templates"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
RECORDED_CHATS, RECORDED_RESPONSES, RECORDED_MESSAGES, SESSION_TURNS = 115, 49, 38, 259
RESPONSES_THAT_VLLM_REFUSES = 9  # items of kinds that it does not take
Body = dict[str, Any]
Case = tuple[Path, str, list[Body]]
ToChat = Callable[[Body, PromptModel], Body]

TO_CHAT: dict[str, ToChat] = {
    CHAT: lambda body, model: body,
    RESPONSES: lambda body, model: responses_as_chat(body, model.template),
    MESSAGES: lambda body, model: messages_as_chat(body, model.template),
}


def folder_of(template: str, folder: Path) -> Path:
    """The test model's tokenizer with another template."""
    made = folder / template
    made.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_DIR / name, made / name)
    shutil.copy(TEMPLATES / f"{template}.jinja", made / "chat_template.jinja")
    return made


VLLM_TO_CHAT = TO_CHAT | {
    MESSAGES: lambda body, model: vllm_messages.messages_as_chat(body, model.template),
    RESPONSES: lambda body, model: vllm_responses.responses_as_chat(body, model.template),
}


def compare(
    engine: str, profile: PromptProfile, cases: Sequence[Case], to_chat: dict[str, ToChat] = TO_CHAT
) -> tuple[int, int]:
    """Turns that the engine took, all equal to ours, and turns that it refused."""
    theirs = iter(engine_ids(engine, [(folder, path, body) for folder, path, bodies in cases for body in bodies]))
    models: dict[Path, PromptModel] = {}
    taken = refused = 0
    for folder, path, bodies in cases:
        if folder not in models:
            models[folder] = PromptModel.open(folder, profile)
        model, state = models[folder], None
        for body in bodies:
            ids = next(theirs)
            if ids is None:
                refused += 1
                continue
            taken += 1
            state = extended(model, state, to_chat[path](body, model))
            assert state.exact_ids is not None
            assert state.exact_ids.tolist() == ids, (engine, folder.name, path, taken)
    assert all(not (model.counts.desyncs or model.counts.loop_faults) for model in models.values())
    return taken, refused


def extended(model: PromptModel, state: PromptState | None, chat: Body) -> PromptState:
    return model.extend(state, msgspec.json.encode(chat), Chain(16))


def sessions() -> list[list[Body]]:
    found = agent_sessions()
    assert sum(map(len, found)) == SESSION_TURNS
    return found


def test_sglang_gives_recorded_requests_the_same_ids() -> None:
    kinds = {path: recorded(path) for path in (CHAT, RESPONSES, MESSAGES)}
    cases = [(MODEL_DIR, path, bodies) for path, recordings in kinds.items() for bodies in recordings]
    cases += [(MODEL_DIR, CHAT, bodies) for bodies in sessions()]
    expected = RECORDED_CHATS + RECORDED_RESPONSES + RECORDED_MESSAGES + SESSION_TURNS
    assert compare("sglang", SglangProfile(), cases) == (expected, 0)


def test_vllm_gives_recorded_requests_the_same_ids() -> None:
    cases = [(MODEL_DIR, CHAT, bodies) for bodies in [*recorded(CHAT), *sessions()]]
    cases += [(MODEL_DIR, path, bodies) for path in (MESSAGES, RESPONSES) for bodies in recorded(path)]
    recorded_all = RECORDED_CHATS + SESSION_TURNS + RECORDED_MESSAGES + RECORDED_RESPONSES
    taken = recorded_all - RESPONSES_THAT_VLLM_REFUSES
    assert compare("vllm", VllmProfile(), cases, VLLM_TO_CHAT) == (taken, RESPONSES_THAT_VLLM_REFUSES)


@pytest.mark.parametrize(("engine", "profile"), [("sglang", SglangProfile()), ("vllm", VllmProfile())])
def test_random_chats_get_the_same_ids_by_every_template(engine: str, profile: PromptProfile, tmp_path: Path) -> None:
    cases: list[Case] = []
    for file in sorted(TEMPLATES.glob("*.jinja")):
        folder = folder_of(file.stem, tmp_path)
        chats = [*random_bodies(11, 60), *cornered_bodies(12, 120)]
        cases += [(folder, CHAT, turns_of(body)) for body in chats]
    taken, refused = compare(engine, profile, cases)
    assert taken > 2000
    assert refused > 50


def turns_of(body: Body) -> list[Body]:
    """A chat at half its length, and whole."""
    half = body["messages"][: len(body["messages"]) // 2]
    return [{**body, "messages": half}, body] if half else [body]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_vllm_server_tokenizes_recorded_chats_the_same(vllm_spec: VllmSpec, http: httpx.AsyncClient) -> None:
    model = PromptModel.open(MODEL_DIR, VllmProfile(tokenize_endpoint=True))
    turns = 0
    for bodies in [*recorded(CHAT), *sessions()]:
        state = None
        for body in bodies:
            kept = {name: body[name] for name in ("model", "messages", "tools", "chat_template_kwargs") if name in body}
            reply = await http.post(f"{vllm_spec.url}/tokenize", json=kept)
            assert reply.status_code == 200, reply.text
            state = extended(model, state, kept)
            assert state.exact_ids is not None
            assert state.exact_ids.tolist() == reply.json()["tokens"]
            turns += 1
    assert turns == RECORDED_CHATS + SESSION_TURNS
