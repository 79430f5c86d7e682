"""A client of a UMBP master, real or ours: what it knows of a prompt, as the leading runs that the index speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from costmodel.values import Tier
from kvtier.control.grpc_channel import GrpcChannel, Unanswered
from kvtier.index.runs import BlockRun
from kvtier.umbp import umbp_pb2 as pb
from kvtier.umbp.service import SERVICE

_TIERS: dict[int, Tier] = {pb.TIER_HBM: Tier.L1, pb.TIER_DRAM: Tier.L2, pb.TIER_SSD: Tier.L4}


class MasterUnavailable(Exception):
    """The master cannot be reached, did not answer in time, or refused. What it knows counts as missing."""


class UmbpReader:
    """Every call has the deadline that was given. `close` must be awaited."""

    def __init__(self, address: str, deadline_s: float) -> None:
        self._channel = GrpcChannel("the UMBP master", address, deadline_s)

    async def leading(self, hashes: Sequence[str], *, count_as_hit: bool = False) -> dict[str, tuple[BlockRun, ...]]:
        """Per node the leading runs of this prompt. Raises `MasterUnavailable`."""
        request = pb.MatchExternalKvRequest(hashes=hashes, count_as_hit=count_as_hit)
        reply = await self._call("MatchExternalKv", request, pb.MatchExternalKvResponse)
        return {
            match.node_id: runs
            for match in reply.matches
            if (runs := leading_runs(hashes, {each.tier: set(each.hashes) for each in match.hashes_by_tier}))
        }

    async def lookup(self, keys: Sequence[str]) -> list[bool]:
        """Which pool keys exist anywhere. Raises `MasterUnavailable`."""
        reply = await self._call("BatchLookup", pb.BatchLookupRequest(keys=keys), pb.BatchLookupResponse)
        return list(reply.found)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method: str, request: Message, reply: type[Message]) -> Any:
        try:
            return await self._channel.ask(SERVICE, method, request, reply)
        except Unanswered as error:
            raise MasterUnavailable(str(error)) from error


def leading_runs(hashes: Sequence[str], held: Mapping[int, set[str]]) -> tuple[BlockRun, ...]:
    """A master's unordered sets by tier as leading runs, each block in its nearest tier."""
    runs: list[BlockRun] = []
    for block, text in enumerate(hashes):
        tier = min((_TIERS[tier] for tier, there in held.items() if tier in _TIERS and text in there), default=None)
        if tier is None:
            break
        if runs and runs[-1].tier is tier:
            runs[-1] = runs[-1]._replace(blocks=runs[-1].blocks + 1)
        else:
            runs.append(BlockRun(block, 1, tier))
    return tuple(runs)
