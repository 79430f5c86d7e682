"""Whatever is wrong with a tokenizer, a template, a profile or a state: the request is served, and the fallback is counted."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prompt_stage import CHAT, MODEL_DIR, PromptStage, prompt_stage, talk, until

from engine_adapters.prompt.tokenizer import Tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder to be spoilt."""
    for file in MODEL_DIR.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    return tmp_path


@pytest.fixture
async def stage() -> AsyncIterator[PromptStage]:
    async with prompt_stage({"verify_every": 1}) as made:
        yield made


def state_of(stage: PromptStage) -> tuple[str, str]:
    """Of the pool and of its model's chats."""
    return stage.prompts.state, stage.prompts.trust("tiny", CHAT).level.value


async def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    async with prompt_stage({"model_dir": str(folder)}) as stage:
        record = await stage.turn({"messages": talk(2)})
        assert record.facts is not None
        assert stage.fallbacks == {"unusable": 1}
        assert stage.prompts.state == "unusable"
        assert "tokenizer.json" in stage.prompts.error
        shown = (await stage.http.get("/admin/index")).json()["pools"][0]
        assert (shown["prompt"], shown["prompts"]["fallbacks"]) == ("unusable", {"unusable": 1})
        assert 'loadback_prompt_fallbacks_total{cause="unusable",pool="default"} 1.0' in (await stage.http.get("/metrics")).text


async def test_a_template_that_refuses_everything(folder: Path) -> None:
    """The engine has the right one. Each thread goes by lineage, and after a while the model does."""
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    async with prompt_stage({"model_dir": str(folder)}) as stage:
        for number in range(8):
            await stage.turn({"messages": talk(1, topic=f"t{number}")})
        assert stage.fallbacks == {"refused": 8}
        assert state_of(stage) == ("discredited", "lineage")
        assert stage.prompts.trust("tiny", CHAT).reason == "no"
        await stage.turn({"messages": talk(1, topic="another")})
        assert stage.fallbacks == {"refused": 8, "lineage": 1}


async def test_a_template_that_breaks_in_python(stage: PromptStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that any code raises reaches the client."""
    monkeypatch.setattr(Tokenizer, "resume", lambda *_: [].pop())
    await stage.turn({"messages": talk(1)})
    assert stage.fallbacks == {"crashed": 1, "refused": 1}
    monkeypatch.undo()
    await stage.turn({"messages": talk(1, topic="another")})
    assert stage.compared == {("count", "right"): 1, ("whole", "right"): 1}


async def test_a_wrong_profile_leads_down_to_lineage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another template than the engine's: every count is wrong. First a thread, then the model is tokenised whole; that is
    wrong as well, so that lineage alone is left."""
    template = folder / "chat_template.jinja"
    template.write_text("You are served by another engine. " + template.read_text())
    async with prompt_stage({"model_dir": str(folder), "verify_every": 1}) as stage:
        first = await stage.turn({"messages": talk(1)})
        assert not len(stage.thread(first).blocks), "wrong blocks are not kept"
        assert state_of(stage) == ("exact", "exact")
        await stage.turn({"messages": talk(2)})
        assert stage.fallbacks == {"count": 2, "whole": 1}
        await stage.turn({"messages": talk(3)})
        assert stage.fallbacks == {"count": 2, "whole": 1, "lineage": 1}
        await stage.turn({"messages": talk(1, topic="another")})
        assert state_of(stage) == ("whole", "whole")
        for number in range(3):
            await stage.turn({"messages": talk(1, topic=f"t{number}")})
        assert state_of(stage) == ("discredited", "lineage")
        assert stage.compared == {("count", "wrong"): 6}
        assert stage.prompts.trust("tiny", CHAT).mismatches == 6
    said = capsys.readouterr().out
    assert "template, tokenizer or profile is not the engine's" in said
    assert "prompt_discredited" in said


async def test_a_poisoned_state_is_found_by_verification(stage: PromptStage, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts stay right, ids do not: whole tokenisation finds it and names the place. The thread is then tokenised whole, and
    has the engine's blocks again."""
    for turns in range(1, 4):
        record = await stage.turn({"messages": talk(turns, lines=30)})
    poison(stage, record.thread)
    poisoned = await stage.turn({"messages": talk(4, lines=30)})
    assert stage.fallbacks == {"differs": 1}
    assert not len(stage.thread(poisoned).blocks)
    assert "differs_at=100" in capsys.readouterr().out
    healed = await stage.turn({"messages": talk(5, lines=30)})
    assert stage.fallbacks == {"differs": 1, "whole": 1}
    assert healed.decision is not None
    blocks = stage.thread(healed).blocks
    index, worker = stage.gateway.fleet.pools["default"].blocks, healed.decision.chosen.prefill
    await until(lambda: index.match(blocks, 0.0)[worker].blocks == len(blocks), "the engine's events name our blocks")
    assert state_of(stage) == ("exact", "exact"), "one thread says nothing of the model"


def poison(stage: PromptStage, thread: str) -> None:
    """Spoil ids that the next turn will not look at again."""
    reader = stage.prompts.reader
    assert reader is not None
    state = reader.cache.get(thread)
    assert state is not None
    first = next(iter(state.ids.chunks))
    first.rows[100:110] = array("I", [7] * 10)


async def test_ids_that_no_event_ever_names(stage: PromptStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts and whole tokenisations are right, but the engine hashes otherwise, as with another hash seed."""
    monkeypatch.setattr("engine_adapters.prompt.engine_prompts.event_seed", lambda salt: b"another seed")
    for number in range(14):
        await stage.turn({"messages": talk(2, topic=f"t{number}")})
    assert state_of(stage) == ("discredited", "lineage")
    assert "KV events" in stage.prompts.trust("tiny", CHAT).reason
    assert set(stage.fallbacks) == {"lineage"}
    assert stage.compared["whole", "right"] > 8


async def test_more_bytes_of_prompts_than_the_queue_takes() -> None:
    async with prompt_stage({"queue_bytes": 1_000}) as stage:
        await stage.turn({"messages": talk(1)})
        assert stage.fallbacks == {}
        await stage.turn({"messages": talk(1, topic="net", lines=60)})
        assert stage.fallbacks == {"busy": 1}
        assert (stage.prompts.pending, stage.prompts.pending_bytes) == (0, 0)


async def test_more_prompts_than_the_queue_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with prompt_stage({"queue_limit": 1}) as stage:
        stage.prompts.pending = 1
        await stage.turn({"messages": talk(1)})
        assert stage.fallbacks == {"busy": 1}
