"""`n` > 1 on a PD pool: n calls of one, joined again. SGLang's decode never answers `n` = 2 (seen on 0.5.23).

Each branch is placed and retried on its own; the second finds the prompt where the first left it. The joined reply has the
choices renumbered and the usage added up. A branch that fails for good fails the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from router.body.fanout import ONE_CHOICE, merge_replies, merge_usages, rewrite_choice_index
from router.dialects.dialect import DialectName, EventKind, split_blocks
from router.errors import BadRequest
from router.turn.dispatch import Dispatcher
from router.turn.port import EngineSide, ReplyPort
from router.turn.tries import CommittedFailure
from router.turn.turn import Turn
from router.wire.head import Header

_MAX_BRANCHES = 128  # OpenAI's own bound of `n`


class FanOut:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def run(self, turn: Turn, port: ReplyPort) -> None:
        """Tries of `turn.scanned.n` branches. Raises what the client must be told, or CommittedFailure."""
        if turn.scanned.n > _MAX_BRANCHES:
            raise BadRequest(f"n must be at most {_MAX_BRANCHES}: each choice is a call of its own on this pool", param="n")
        joint = _Joint(turn, port)
        branches = [replace(turn, turn_id=self._dispatcher.next_turn_id(), failed=set()) for _ in range(turn.scanned.n)]
        runs = [self._dispatcher.tries(branch, joint.branch(i), ONE_CHOICE) for i, branch in enumerate(branches)]
        try:
            await _all_or_first_failure(runs)
        except CommittedFailure:
            joint.abort()
            raise
        except BaseException as error:
            if not joint.committed:
                raise
            joint.abort()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise CommittedFailure(error) from error
        finally:
            turn.tries = sum(branch.tries for branch in branches)
            turn.attempt = branches[0].attempt
        joint.finish([branch.attempt.usage() for branch in branches if branch.attempt])


async def _all_or_first_failure(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Joint:
    """The one reply that the branches make together."""

    def __init__(self, turn: Turn, port: ReplyPort) -> None:
        self._turn = turn
        self._port = port
        self._replies: dict[int, tuple[list[Header], bytes]] = {}
        self._chunk_id = turn.request_id.encode()  # clients take the chunks of one stream to have one id
        self._engines: list[EngineSide] = []

    @property
    def committed(self) -> bool:
        return self._port.committed

    def branch(self, index: int) -> ReplyPort:
        return _Branch(self, index)

    def abort(self) -> None:
        self._port.abort()

    def start(self, headers: list[Header]) -> None:
        self._port.start_stream(headers)

    def write(self, index: int, events: bytes) -> None:
        """Pass a branch's choices on under their number. Its end marker is not the end of the whole."""
        classify = self._turn.dialect.classify
        for event in split_blocks(events):
            if classify(event) not in (EventKind.DONE, EventKind.COMMENT, EventKind.TRAILER):
                self._port.write(rewrite_choice_index(event, index, self._chunk_id) + b"\n\n")

    def reply(self, index: int, headers: list[Header], body: bytes) -> None:
        self._replies[index] = (headers, body)

    def attach(self, engine: EngineSide) -> None:
        self._engines.append(engine)
        self._port.attach(self)

    def pause_reading(self) -> None:
        for engine in self._engines:
            engine.pause_reading()

    def resume_reading(self) -> None:
        for engine in self._engines:
            engine.resume_reading()

    def silent_s(self, now_s: float) -> float:
        return min(engine.silent_s(now_s) for engine in self._engines)

    def finish(self, usages: list[bytes | None]) -> None:
        if self._replies:
            bodies = [self._replies[index][1] for index in sorted(self._replies)]
            self._port.respond(200, self._replies[0][0], merge_replies(bodies))
            return
        if self._turn.scanned.asks_usage:
            self._port.write(self._usage_chunk([usage for usage in usages if usage is not None]))
        self._port.write(b"data: [DONE]\n\n")
        self._port.finish_stream()

    def _usage_chunk(self, usages: list[bytes]) -> bytes:
        chunk: dict[str, object] = {
            "id": self._turn.request_id,
            "object": "chat.completion.chunk" if self._turn.dialect.name is DialectName.CHAT else "text_completion",
            "created": round(self._turn.arrived_at_s),
            "model": self._turn.scanned.model,
            "choices": [],
            "usage": msgspec.Raw(merge_usages(usages)),
        }
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class _Branch:
    """One branch as a reply port. It commits with its own first event: it may be retried while others already stream."""

    def __init__(self, joint: _Joint, index: int) -> None:
        self.committed = False
        self._joint = joint
        self._index = index

    def start_stream(self, headers: list[Header]) -> None:
        self.committed = True
        self._joint.start(headers)

    @property
    def write(self) -> Callable[[bytes], None]:
        return partial(self._joint.write, self._index)

    def finish_stream(self) -> None:
        """The whole is finished when every branch is."""

    def respond(self, status: int, headers: list[Header], body: bytes) -> None:
        self.committed = True
        self._joint.reply(self._index, headers, body)

    def abort(self) -> None:
        """The joint aborts the client once, when the failure has reached it."""

    def attach(self, engine: EngineSide) -> None:
        self._joint.attach(engine)
