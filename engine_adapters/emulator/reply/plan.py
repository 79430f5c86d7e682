"""What the emulated model says: deterministic by seed and prompt, and enough of an agent to keep a tool-using session going.

With tools offered it calls one until `tool_rounds` results follow the user's last message, then it answers in text. It is no
language model: the text is made of words from a list, and `stop` strings never occur in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from engine_adapters.emulator.reply.schema import synthesise
from engine_adapters.emulator.reply.tools import OfferedTool, PlannedCall, call, choose
from engine_adapters.prompt.tokenizer import Tokenizer

_VOCABULARY = (
    "the a one this file test value result list order cache block path table index code change check step next first last line "
    "function module worker request reply token prefix engine queue page tier score plan is are has was keeps reads writes "
    "finds moves returns starts ends needs and or with from into for after before because so then small large new old fast "
    "slow same whole empty ready stable here there now again only also"
)
_WORDS = tuple(_VOCABULARY.split())
CALL_MARKER = "<tool_call>\n"  # how the model's own format opens a call
SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # mini-swe-agent ends a session by this command, not by a text


class ReplyStyle(msgspec.Struct, frozen=True):
    """How the emulated model talks. Lengths are words."""

    seed: int = 0
    min_words: int = 8
    max_words: int = 40
    tool_rounds: int = 2


class ReplyRequest(msgspec.Struct, frozen=True):
    """What of a request shapes the reply. `forced` demands a call; `named` demands one tool."""

    prompt_key: int  # equal prompts get equal replies
    max_tokens: int
    tools: tuple[OfferedTool, ...] = ()
    forced: bool = False
    named: str | None = None
    tool_results: int = 0  # since the last message of the user
    submits: bool = False  # the session ends by the submit command
    json_schema: Any = None  # the reply must be JSON of this shape
    ignore_eos: bool = False
    choice: int = 0  # which of `n`


class ReplyPlan(msgspec.Struct, frozen=True):
    """The whole reply ahead of time. `pieces[i]` is the text that token i adds; `ends` tells whether EOS is its last token."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    calls: tuple[PlannedCall, ...]
    ends: bool
    call_at: int = 0  # where in the text the first call starts; the text before it is content
    name_end: int = 0  # where its name is complete
    arguments_at: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def plan_reply(request: ReplyRequest, style: ReplyStyle, tokenizer: Tokenizer) -> ReplyPlan:
    """Decide everything the model will say to `request`, cut to its `max_tokens`."""
    rng = random.Random(f"{style.seed}:{request.prompt_key}:{request.choice}")
    planned = _calls(request, style)
    if planned:
        head = f'{CALL_MARKER}{{"name": "{planned[0].tool.name}", "arguments": '
        text = f"{head}{planned[0].arguments}}}\n</tool_call>"
        name_end, arguments_at = head.index('", "arguments"') + 1, len(head)
    else:
        text, name_end, arguments_at = _content(request, rng, style), 0, 0
    ids = tokenizer.encode(text, add_special_tokens=False)
    eos = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    if request.ignore_eos:
        while len(ids) < request.max_tokens:
            ids += tokenizer.encode(" " + _sentence(rng, style), add_special_tokens=False)
        ends = False
    else:
        ids.append(eos)
        ends = len(ids) <= request.max_tokens
    ids = ids[: request.max_tokens]
    return ReplyPlan(tuple(ids), _pieces(tokenizer, ids, ends), planned, ends, 0, name_end, arguments_at)


def _calls(request: ReplyRequest, style: ReplyStyle) -> tuple[PlannedCall, ...]:
    if not request.tools:
        return ()
    wanted = request.forced or request.named is not None or request.tool_results < style.tool_rounds
    if not wanted and not request.submits:
        return ()
    tool = choose(request.tools, request.named)
    if tool is None:
        return ()
    return (call(tool, None if wanted else f"echo {SUBMIT_MARK}"),)


def _content(request: ReplyRequest, rng: random.Random, style: ReplyStyle) -> str:
    if request.json_schema is not None:
        return json.dumps(synthesise(request.json_schema), ensure_ascii=False)
    return _sentence(rng, style)


def _sentence(rng: random.Random, style: ReplyStyle) -> str:
    words = [rng.choice(_WORDS) for _ in range(rng.randint(style.min_words, max(style.min_words, style.max_words)))]
    return " ".join(words).capitalize() + "."


def _pieces(tokenizer: Tokenizer, ids: Sequence[int], ends: bool) -> tuple[str, ...]:
    """The text each token adds, decoded with a short look-back so that characters split over tokens appear once whole."""
    pieces: list[str] = []
    start = read = 0
    spoken = len(ids) - 1 if ends else len(ids)
    for position in range(spoken):
        before = tokenizer.decode(ids[start:read])
        after = tokenizer.decode(ids[start : position + 1])
        if after.endswith("\ufffd") and position + 1 < spoken:
            pieces.append("")
            continue
        pieces.append(after[len(before) :])
        start, read = read, position + 1
    return (*pieces, "") if ends else tuple(pieces)
