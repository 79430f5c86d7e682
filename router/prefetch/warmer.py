"""Sends warm requests to engines, one at a time a worker, and takes them back. They are nobody's turn: no metrics of turns, no
thread knows of them, and a ledger only to leave them out of what its engine reports."""

from __future__ import annotations

from random import Random

import httpx

from costmodel.values import Role, WorkerKey
from engine_adapters.base import AdapterError
from engine_adapters.sglang.rooms import fresh_room
from engine_adapters.sglang.warm import WarmOrder, send_warm
from kvtier.prefetch.events import FailReason
from router.errors import GatewayError
from router.fleet.aborter import Aborter
from router.fleet.fleet import Fleet
from router.prefetch.node_agents import AgentFault
from router.prefetch.subjects import Subjects


class Warmer:
    def __init__(self, fleet: Fleet, subjects: Subjects, http: httpx.AsyncClient, aborter: Aborter, rng: Random) -> None:
        self._fleet = fleet
        self._subjects = subjects
        self._http = http
        self._aborter = aborter
        self._rng = rng

    async def warm(self, subject: str, key: WorkerKey, tokens: int, timeout_s: float) -> int:
        """How many tokens the engine brought up to L1. Raises `AgentFault`; cancelled, the engine is told to stop."""
        ids = self._subjects.ids(subject)
        if ids is None:
            raise AgentFault(FailReason.REFUSED, "the token ids of this prompt are not known")
        try:
            pool, worker = self._fleet.find(key.worker_id)
        except GatewayError as error:
            raise AgentFault(FailReason.NO_WORKER, error.message) from error
        ranks = len(worker.keys)
        at = min(key.dp_rank, ranks - 1)
        room = fresh_room(self._rng, ranks, at) if worker.role is Role.PREFILL else None
        rid = pool.adapter.request_id("/generate", f"{self._rng.getrandbits(128):032x}")
        rank = key.dp_rank if ranks > 1 else None
        order = WarmOrder(rid, ids, tokens, worker.role, room, rank, self._subjects.cache_salt(subject))
        ledger, finished = worker.ranks[at], False
        ledger.warming += 1
        try:
            warmed = await send_warm(self._http, worker.endpoint, order, timeout_s)
            finished = True
        except AdapterError as error:
            raise AgentFault(FailReason.REFUSED, str(error)) from error
        finally:
            ledger.warming -= 1
            if not finished:
                self._aborter.abort(worker, rid)
        return warmed.moved_tokens
