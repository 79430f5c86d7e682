"""A client of a UMBP master, real or ours: what it knows of a prompt, as the leading runs that the index speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc import aio

from costmodel.values import Tier
from kvtier.index.runs import BlockRun
from kvtier.umbp import umbp_pb2 as pb
from kvtier.umbp.service import SERVICE

_TIERS: dict[int, Tier] = {pb.TIER_HBM: Tier.L1, pb.TIER_DRAM: Tier.L2, pb.TIER_SSD: Tier.L4}


class MasterUnavailable(Exception):
    """The master cannot be reached, did not answer in time, or refused. What it knows counts as missing."""


class UmbpReader:
    """Every call has the deadline that was given. `close` must be awaited."""

    def __init__(self, address: str, deadline_s: float) -> None:
        self._channel = aio.insecure_channel(address)
        self._deadline_s = deadline_s

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

    async def _call(self, method: str, request: Any, reply: Any) -> Any:
        call: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            return await call(request, timeout=self._deadline_s)
        except aio.AioRpcError as error:
            raise MasterUnavailable(f"{method}: {error.code().name}: {error.details()}") from error
        except grpc.RpcError as error:
            raise MasterUnavailable(f"{method}: {error}") from error


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
