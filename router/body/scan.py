"""Reads from a request body what routing needs and refuses what no engine could serve.

One pass of msgspec over the body, or, with a memo and a body that begins like one seen before, only over its end. Unknown
members are skipped, not judged. Of duplicate keys the last counts, as in the engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw

from router.body.head import HeadReader
from router.body.memo import Checkpoint, PrefixMemo, Walk
from router.body.scanned import Scanned
from router.body.shape import Members, Shape
from router.body.surrogates import mend_surrogates
from router.dialects import DIALECTS
from router.dialects.dialect import Dialect, DialectName
from router.errors import BadRequest

S = TypeVar("S")
_MAX_MESSAGES = 100_000  # tracing ten million took minutes and gigabytes


class _Readers(Generic[S]):
    """Everything needed for one dialect."""

    __slots__ = ("head", "rest", "salt", "whole")

    def __init__(self, dialect: Dialect, reserved: frozenset[str], nonce: str, salt: int) -> None:
        self.whole = Shape(dialect, reserved)
        self.rest = Shape(dialect, reserved, extra={"continued": nonce})
        self.head = HeadReader(self.whole, nonce)
        self.salt = salt


class Scanner(Generic[S]):
    """`reserved`: top-level keys to report (of all engines; `edits.refuse_reserved` knows which count for one)."""

    def __init__(self, reserved: Iterable[str] = (), memo: PrefixMemo[S] | None = None) -> None:
        nonce = secrets.token_hex(12)
        keys = frozenset(reserved)
        self._memo = memo
        self._readers: dict[DialectName, _Readers[S]] = {
            dialect.name: _Readers(dialect, keys, nonce, salt) for salt, dialect in enumerate(DIALECTS.values())
        }

    def scan(self, body: bytes, dialect: Dialect) -> Scanned[S]:
        """Raises BadRequest naming the parameter and what is wrong with it."""
        readers = self._readers[dialect.name]
        memo = None if dialect.name is DialectName.COMPLETIONS else self._memo  # a prompt has no messages
        walk = memo.walk(body, readers.salt) if memo is not None else None
        if walk is not None and walk.found is not None:
            scanned = _scan_rest(body, readers.rest, walk, walk.found)
            if scanned is not None:
                return scanned
            walk.found, walk.found_at = None, -1
        return _scan_whole(body, readers.whole, walk)

    def whole(self, scanned: Scanned[S]) -> Scanned[S]:
        """The same body with all of its messages, for a caller that has forgotten what the checkpoint stands for."""
        walk = scanned.walk
        if walk is not None:
            walk.found, walk.found_at = None, -1
        return _scan_whole(scanned.body, self._readers[scanned.dialect.name].whole, walk)

    def remember(self, scanned: Scanned[S], states: list[S]) -> None:
        """Note the caller's state after each of `scanned.messages`, for bodies that begin like this one."""
        if self._memo is not None and scanned.walk is not None:
            head = self._readers[scanned.dialect.name].head
            self._memo.remember(scanned.walk, scanned.body, scanned.text, scanned.messages, states, head)


def scan(body: bytes, dialect: Dialect, reserved: Iterable[str] = ()) -> Scanned[None]:
    """One body without any memory. Builds its decoder anew: for tests and cold paths."""
    return _scan_whole(body, Shape(dialect, reserved), None)


def _scan_whole(body: bytes, shape: Shape, walk: Walk[S] | None) -> Scanned[S]:
    text = body
    try:
        members = shape.decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        text = mend_surrogates(body)
        if text is body:
            raise _unreadable(error) from None
        members = _decode_mended(text, shape)
    model = _model(members)
    messages, prompt = _conversation(members, shape.dialect)
    reserved = shape.reserved_found(members)
    stream = members.stream is True
    return Scanned(body, shape.dialect, model, stream, messages, prompt, reserved, members, text, walk=walk)


def _decode_mended(text: bytes, shape: Shape) -> Members:
    try:
        return shape.decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(error) from None


def _scan_rest(body: bytes, shape: Shape, walk: Walk[S], checkpoint: Checkpoint[S]) -> Scanned[S] | None:
    """Only what follows `checkpoint`; None where that cannot be read by itself, and then the whole body decides."""
    rest = b"".join((checkpoint.head.prefix, memoryview(body)[checkpoint.offset :]))
    try:
        members = shape.decoder.decode(rest)
    except (msgspec.DecodeError, RecursionError):
        return None
    if members.conversation is not UNSET or not (isinstance(members.model, str) and members.model):
        return None  # a second conversation follows, and the last one counts; or the model is wrong
    continued: list[Raw] = members.continued  # type: ignore[attr-defined]  # added by the shape
    del continued[0]
    return Scanned(
        body,
        shape.dialect,
        members.model,
        members.stream is True,
        continued,
        None,
        shape.reserved_found(members),
        members,
        body,
        checkpoint.messages,
        checkpoint,
        walk,
    )


def _conversation(members: Members, dialect: Dialect) -> tuple[list[Raw], str | Raw | None]:
    value = members.conversation
    if isinstance(value, list):
        if len(value) > _MAX_MESSAGES:
            key = dialect.message_key
            raise BadRequest(f"{key} has {len(value)} items; at most {_MAX_MESSAGES} are taken", param=key)
        return value, None
    if isinstance(value, (str, Raw)) and not dialect.requires_messages:
        return [], value
    if value is UNSET or value is None:
        if dialect.requires_messages:
            raise BadRequest(f"{dialect.message_key} is missing: it must be a list of messages", param=dialect.message_key)
        return [], None
    raise BadRequest(f"{dialect.message_key} must be a list of messages", param=dialect.message_key)


def _model(members: Members) -> str:
    model = members.model
    if isinstance(model, str) and model:
        return model
    if model is UNSET or model is None or model == "":
        raise BadRequest("model is missing: name one of GET /v1/models", param="model")
    raise BadRequest("model must be a string", param="model")


def _unreadable(error: msgspec.DecodeError | RecursionError) -> BadRequest:
    if isinstance(error, RecursionError):
        return BadRequest("the body is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return BadRequest(f"the body must be a JSON object ({error})")
    return BadRequest(f"the body is not valid JSON ({error})")
