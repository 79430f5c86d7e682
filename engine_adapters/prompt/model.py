"""A model's prompts: its template, tokenizer and engine profile joined, whole or as the next version of a known prompt.

A known prompt is gone on with from one of its last messages, so that neither rendering nor tokenising nor hashing depends on
how long it is. Where the template, the engine or the conversation does not allow that, the whole is rendered and only
tokenising and hashing are spared.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from engine_adapters.prompt.body_prefix import BodyPrefix
from engine_adapters.prompt.chat_body import OWN_IDS, TalkBody, body_of, read_body
from engine_adapters.prompt.dialect_body import DialectForm, NotMessageWise, read_dialect, whole_chat
from engine_adapters.prompt.encoded import PromptTokenizer
from engine_adapters.prompt.extend import Change, Desync, Unreachable, extend, reach_back
from engine_adapters.prompt.hasher import Hasher
from engine_adapters.prompt.load_tokenizer import load_tokenizer
from engine_adapters.prompt.loop_run import LoopTemplate
from engine_adapters.prompt.loop_source import NotLoopWise
from engine_adapters.prompt.loop_watch import Changed, LoopRun, LoopTrace
from engine_adapters.prompt.message_rows import NO_KEY, last_user_of, message_rows, shape_key
from engine_adapters.prompt.message_view import LazyMessages
from engine_adapters.prompt.profile import JsonObject, PromptProfile, Settings
from engine_adapters.prompt.recent import Recent
from engine_adapters.prompt.rendering import (
    Conversation,
    Rendered,
    continues_in_text,
    conversation,
    read_settings,
    render,
    render_conversation,
)
from engine_adapters.prompt.state import (
    MESSAGE_CHARS,
    MESSAGE_REACH,
    MESSAGE_SHAPE,
    PromptState,
)
from engine_adapters.prompt.template import PromptTemplate, TemplateRefusal
from kvtier.hashing.chain import BlockChain

_REMEMBERED_HEADS = 256
_CHECKED_RUNS = 4


class Counts(msgspec.Struct):
    """How prompts were made. `resumed`: from one of the last messages; `whole`: rendered whole; `desyncs`: known ids came out
    differently and the prompt was made anew; `loop_faults`: the rewritten template disagreed with the plain one and was
    dropped."""

    resumed: int = 0
    whole: int = 0
    desyncs: int = 0
    loop_faults: int = 0


class PromptModel:
    """Thread-safe: what it remembers is only ever added to."""

    def __init__(
        self, template: PromptTemplate, tokenizer: PromptTokenizer, profile: PromptProfile, *, seed: int | None = None
    ) -> None:
        """`seed` keeps clients from making two messages with one key; tests may fix it."""
        self.template = template
        self.tokenizer = tokenizer
        self.profile = profile
        self.counts = Counts()
        self._hasher = Hasher(secrets.randbits(63) if seed is None else seed)
        self._form = profile.content_format(template)
        self._settings: Recent[bytes, Settings] = Recent(_REMEMBERED_HEADS)
        self._loop = _loop_of(template)
        self._unchecked = _CHECKED_RUNS

    @classmethod
    def open(cls, folder: Path, profile: PromptProfile, *, fast: bool = False) -> PromptModel:
        """Raises ValueError naming what the folder lacks."""
        tokenizer = load_tokenizer(folder, long_texts=profile.long_texts, fast=fast)
        return cls(PromptTemplate.from_folder(folder), tokenizer, profile)

    @property
    def loop_wise(self) -> bool:
        """Whether prompts can be gone on with from one of their messages."""
        return self._loop is not None

    def render(self, body: Mapping[str, Any]) -> Rendered:
        """The prompt of a parsed chat body, by the template as it is. Raises ValueError where the engine answers 400."""
        return render(self.template, self.profile, body)

    def encode(self, rendered: Rendered) -> array[int]:
        """All ids, by the tokenizer alone. Raises ValueError for what it does not take."""
        ids = self.tokenizer.resume(rendered.text).ids
        return ids + self.tokenizer.resume(rendered.appended).ids if rendered.appended else ids

    def parse(self, body: bytes) -> Mapping[str, Any]:
        """A chat body, parsed. Raises ValueError."""
        try:
            parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            parsed = {name: msgspec.json.decode(raw) for name, raw in parts.items() if name != "messages"}
            messages = msgspec.json.decode(parts.get("messages", b"null"), type=list[msgspec.Raw] | None)
            if not messages:
                raise ValueError("the body must be an object with messages")
            if parsed.get("input_ids") is not None:
                raise ValueError(OWN_IDS)
            # One by one: reading megabytes at once would keep other threads waiting for the interpreter.
            return {**parsed, "messages": [msgspec.json.decode(message) for message in messages]}
        except msgspec.DecodeError as error:
            raise ValueError(f"the body cannot be read: {error}") from error

    def start_key(self, body: bytes, form: DialectForm | None = None) -> tuple[bytes, bytes]:
        """What another prompt must have to begin like this body's (see `PromptState.start_key`). Raises ValueError."""
        chat = self._read(body, None, form)
        return chat.head_key(self._hasher), chat.first_key(self._hasher)

    def extend(
        self,
        base: PromptState | None,
        body: bytes,
        root: BlockChain,
        *,
        keep_ids: bool = True,
        form: DialectForm | None = None,
    ) -> PromptState:
        """The state of a chat body's prompt, made from that of any earlier prompt, best the thread's last one.

        Costs what is new since then, and little more where the conversation did not just go on. `root`: the empty chain of the
        block hashes that are wanted. `form`: of a body of another protocol. Raises ValueError where the engine answers 400.
        """
        chat = self._read(body, base.body if base is not None else None, form)
        head, settings = self._read_settings(chat)
        if base is not None and self._loop is not None and base.trace is not None and base.head == head:
            try:
                return self._resume(self._loop, base, base.trace, chat, settings, root, keep_ids)
            except (Changed, Unreachable, NotLoopWise, TemplateRefusal):
                pass  # the whole is rendered then, and refused if need be
            except Desync:
                self.counts.desyncs += 1
                base = None
        return self._whole(base, chat, head, settings, root, keep_ids)

    def _read(self, body: bytes, before: BodyPrefix | None, form: DialectForm | None) -> TalkBody:
        if form is None:
            return read_body(body, before, self._hasher)
        try:
            return read_dialect(body, before, self._hasher, form)
        except (NotMessageWise, ValueError):
            return read_body(body_of(whole_chat(body, form)), before, self._hasher)

    def _read_settings(self, chat: TalkBody) -> tuple[bytes, Settings]:
        head = chat.head_key(self._hasher)
        settings = self._settings.get(head)
        if settings is None:
            settings = read_settings(self.template, self.profile, chat.members())
            self._settings.put(head, settings)
        return head, settings

    def _resume(
        self,
        loop: LoopTemplate,
        base: PromptState,
        trace: LoopTrace,
        chat: TalkBody,
        settings: Settings,
        root: BlockChain,
        keep_ids: bool,
    ) -> PromptState:
        """From one of the last messages that both prompts have. Raises what means that it cannot be done so."""
        common = self._common(base, chat)
        known = min(common, len(base.messages) - 1, chat.count - 1, base.messages.count_to(common - 1, MESSAGE_REACH))
        if known <= trace.base:
            raise Unreachable
        sure = base.messages.number(known, MESSAGE_CHARS)
        back = reach_back(base, sure, root)
        first = base.messages.count_to(back - 1, MESSAGE_CHARS) - 1 if back else 0
        if first < trace.base:
            raise Unreachable
        shaped = [self._shape(chat, index) for index in range(first, chat.count)]
        talk = conversation(self.template, self.profile, shaped, settings)
        if talk.moved or continues_in_text(talk):
            raise NotLoopWise("the engine rearranges this conversation")
        at = base.messages.number(first, MESSAGE_CHARS)
        run = loop.run(
            LazyMessages(first, talk.messages, chat.role, lambda index: self._shape(chat, index)),
            settings.tools,
            add_generation_prompt=settings.add_generation_prompt,
            variables=settings.variables,
            start=first,
            start_chars=at,
            before=trace,
            last_user=last_user_of(base, first, talk.messages),
        )
        reach = base.messages.number(first - 1, MESSAGE_REACH) if first else 0
        keys, rows = message_rows(chat, shaped, talk.messages, first, run, reach, self._hasher)
        change = Change(run.text, at, sure, talk.appended, base.head, run.trace, first, keys, rows)
        state = extend(base, change, self.tokenizer, root, self._hasher, keep_ids=keep_ids)
        self.counts.resumed += 1
        return msgspec.structs.replace(state, body=chat.prefix)

    def _whole(
        self, base: PromptState | None, chat: TalkBody, head: bytes, settings: Settings, root: BlockChain, keep_ids: bool
    ) -> PromptState:
        """Rendered from the beginning; what is equal in text is not tokenised again."""
        shaped = [self._shape(chat, index) for index in range(chat.count)]
        talk = conversation(self.template, self.profile, shaped, settings)
        run = self._run_whole(talk)
        if run is not None and run.trace is not None:
            keys, rows = message_rows(chat, shaped, talk.messages, 0, run, 0, self._hasher)
            change = Change(run.text, 0, 0, talk.appended, head, run.trace, 0, keys, rows)
        else:
            rendered = Rendered(run.text, talk.appended) if run is not None else self._render(talk)
            change = Change(rendered.text, 0, 0, rendered.appended, head, None, 0, array("I"), array("I"))
        self.counts.whole += 1
        try:
            state = extend(base, change, self.tokenizer, root, self._hasher, keep_ids=keep_ids)
        except Desync:
            self.counts.desyncs += 1
            state = extend(None, change, self.tokenizer, root, self._hasher, keep_ids=keep_ids)
        return msgspec.structs.replace(state, body=chat.prefix)

    def _render(self, talk: Conversation) -> Rendered:
        return render_conversation(self.template, self.profile, talk)

    def _run_whole(self, talk: Conversation) -> LoopRun | None:
        """By the rewritten template, which says where messages begin; None where that is not to be had."""
        loop, settings = self._loop, talk.settings
        if loop is None or talk.moved or continues_in_text(talk):
            return None
        try:
            run = loop.run(
                talk.messages,
                settings.tools,
                add_generation_prompt=settings.add_generation_prompt,
                variables=settings.variables,
            )
        except NotLoopWise:
            self._loop = None
            return None
        except TemplateRefusal:
            return None  # or it could not do with a watched list; the plain template knows
        if self._unchecked > 0:
            self._unchecked -= 1
            if run.text != self._render(talk).text:
                self.counts.loop_faults += 1
                self._loop = None
                return None
        return run

    def _common(self, base: PromptState, chat: TalkBody) -> int:
        """How many messages at the beginning the template is given as before: the same bytes, or the same in effect."""
        rows = len(base.messages)
        if chat.same:
            common = min(chat.same, rows)
            if common == rows and base.raw_keys.row(rows - 1).tobytes() == NO_KEY:
                common -= 1
        else:
            common = base.raw_keys.same_rows(chat.keys(self._hasher))
        while common < min(rows, chat.count) and self._same_shape(base, chat, common):
            common += 1
        return common

    def _same_shape(self, base: PromptState, chat: TalkBody, index: int) -> bool:
        known = base.messages.row(index)[MESSAGE_SHAPE:].tobytes()
        return shape_key(self._shape(chat, index), self._hasher) == known

    def _shape(self, chat: TalkBody, index: int) -> JsonObject:
        return self.profile.message(chat.message(index), self._form)


def _loop_of(template: PromptTemplate) -> LoopTemplate | None:
    try:
        return LoopTemplate(template)
    except NotLoopWise:
        return None
