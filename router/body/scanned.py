"""What was read of one request body. The messages are raw slices of it; nothing in here is ever serialised again."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw

from router.body.head import Span
from router.body.memo import Checkpoint, Walk
from router.body.shape import Members
from router.dialects.dialect import Dialect

S = TypeVar("S")
_NULL = b"null"
_MAX_DIGITS = 10
_MANY = 10**9


class _Metadata(msgspec.Struct):
    user_id: Any = None


class _StreamOptions(msgspec.Struct):
    include_usage: Any = None


class Scanned(msgspec.Struct, Generic[S]):
    """`messages` are those from number `first_message` on: all of them, or, where the body begins like one seen before, those
    behind `checkpoint`. A conversation given as text (Responses) or a prompt (completions) is in `prompt` instead.
    """

    body: bytes
    dialect: Dialect
    model: str
    stream: bool
    messages: list[Raw]
    prompt: str | Raw | None
    reserved: tuple[str, ...]  # reserved keys that the client has set
    members: Members
    text: bytes  # the body as it was read: equal to it but for lone surrogate escapes
    first_message: int = 0
    checkpoint: Checkpoint[S] | None = None
    walk: Walk[S] | None = None

    @property
    def n(self) -> int:
        """Choices asked for. Engines take `"2"` and `2.0` for 2, so both count."""
        n = self.members.n
        if type(n) is float and n.is_integer():
            n = int(n)
        elif type(n) is str and n.strip().isdecimal():
            n = int(n) if len(n) < _MAX_DIGITS else _MANY
        return n if type(n) is int and n > 0 else 1

    @property
    def max_output_tokens(self) -> int | None:
        members = self.members
        for value in (members.max_completion_tokens, members.max_tokens, members.max_output_tokens):
            if type(value) is int:
                return value
        return None

    @property
    def stream_options(self) -> bytes | None:
        """The client's own `stream_options` as raw JSON."""
        return _present(self.members.stream_options)

    @property
    def asks_usage(self) -> bool:
        """Whether a streamed reply has to carry usage because the client said so."""
        options = self.stream_options
        if options is None:
            return False
        try:
            return msgspec.json.decode(options, type=_StreamOptions).include_usage is True
        except msgspec.DecodeError:
            return False

    @property
    def asks_details(self) -> bool:
        """Whether the client itself wants the engine's cache details in the reply."""
        return self.members.return_cached_tokens_details is True

    @property
    def asks_prompt_logprobs(self) -> bool:
        """`echo` with `logprobs` on completions: the prompt's own log probabilities belong to the reply."""
        members = self.members
        return members.echo is True and type(members.logprobs) is int

    @property
    def prompt_cache_key(self) -> str | None:
        key = self.members.prompt_cache_key
        return key if isinstance(key, str) and key else None

    @property
    def user_id(self) -> str | None:
        """`metadata.user_id`, where clients of the Messages API put their session."""
        if self.members.metadata is UNSET:
            return None
        try:
            user_id = msgspec.json.decode(self.members.metadata, type=_Metadata).user_id
        except msgspec.DecodeError:
            return None
        return user_id if isinstance(user_id, str) and user_id else None

    @property
    def tools(self) -> Raw | bytes | None:
        own = self.members.tools
        if own is UNSET:
            return self._from_head(self.checkpoint.head.tools) if self.checkpoint is not None else None
        return None if bytes(own) == _NULL else own

    @property
    def system(self) -> Raw | bytes | None:
        """The system prompt of dialects that keep it apart from the messages."""
        if self.dialect.system_key is None:
            return None
        own = self.members.system
        if own is UNSET:
            return self._from_head(self.checkpoint.head.system) if self.checkpoint is not None else None
        return None if bytes(own) == _NULL else own

    def _from_head(self, span: Span | None) -> bytes | None:
        """A member that lies before the checkpoint, at the same place in every body that begins so."""
        raw = b"null" if span is None else self.text[span.start : span.end]
        return None if raw == _NULL else raw

    @property
    def cache_namespace(self) -> tuple[object, ...]:
        """Members that part the engine's cache: equal prompts under different ones share nothing."""
        members = self.members
        if members.cache_salt is UNSET and members.extra_key is UNSET and members.lora_path is UNSET:
            return ()
        return tuple(value for value in (members.cache_salt, members.extra_key, members.lora_path) if value is not UNSET)


def _present(raw: Raw | msgspec.UnsetType) -> bytes | None:
    return None if raw is UNSET or (value := bytes(raw)) == _NULL else value
