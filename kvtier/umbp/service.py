"""The `UMBPMaster` gRPC service: UMBP's messages to and from the master's picture. Knows no sockets and no clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from kvtier.control.unary_service import Answer, unary_service
from kvtier.umbp import umbp_pb2 as pb
from kvtier.umbp.clients import AlreadyRegistered, Capacity, Client
from kvtier.umbp.master_state import Event, MasterState

SERVICE = "umbp.UMBPMaster"
MAX_HIT_QUERY = 4096
HEARTBEAT_MS = 5000


class MasterService:
    """`handlers` go into a `grpc.aio` server. `metrics` counts samples that clients reported."""

    def __init__(self, state: MasterState, clock_ms: Callable[[], float]) -> None:
        self.state = state
        self.metric_samples = 0
        self._clock_ms = clock_ms

    @property
    def handlers(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Answer] = {
            "RegisterClient": self._register,
            "UnregisterClient": self._unregister,
            "Heartbeat": self._heartbeat,
            "RouteGet": self._route_get,
            "RoutePut": self._route_put,
            "BatchRoutePut": self._batch_route_put,
            "BatchRouteGet": self._batch_route_get,
            "BatchLookup": self._batch_lookup,
            "ReportExternalKvBlocks": self._report,
            "RevokeExternalKvBlocks": self._revoke,
            "RevokeAllExternalKvBlocksAtTier": self._revoke_tier,
            "RevokeAllExternalKvBlocksForNode": self._revoke_node,
            "MatchExternalKv": self._match,
            "GetExternalKvHitCounts": self._hit_counts,
            "ReportMetrics": self._metrics,
        }
        return unary_service(SERVICE, {name: (answer, getattr(pb, f"{name}Request")) for name, answer in methods.items()})

    async def _register(self, request: pb.RegisterClientRequest, context: ServicerContext[Any, Any]) -> Message:
        if not request.node_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a client has a node_id")
        client = Client(
            request.node_id,
            request.node_address,
            request.peer_address,
            request.engine_desc,
            tuple(request.tags),
            _capacities(request.tier_capacities),
        )
        try:
            self.state.register(client, self._clock_ms())
        except AlreadyRegistered as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        return pb.RegisterClientResponse(heartbeat_interval_ms=HEARTBEAT_MS)

    async def _unregister(self, request: pb.UnregisterClientRequest, _: ServicerContext[Any, Any]) -> Message:
        self.state.unregister(request.node_id)
        return pb.UnregisterClientResponse()

    async def _heartbeat(self, request: pb.HeartbeatRequest, _: ServicerContext[Any, Any]) -> Message:
        beat = self.state.heartbeat(
            request.node_id,
            [(bundle.seq, [_event(event) for event in bundle.events]) for bundle in request.bundles],
            _capacities(request.tier_capacities),
            full=request.is_full_sync,
            baseline=request.delta_seq_baseline,
            now_ms=self._clock_ms(),
        )
        return pb.HeartbeatResponse(
            status=beat.status.value,  # type: ignore[arg-type]  # enums of the wire are plain numbers
            acked_seq=beat.acked_seq,
            request_full_sync=beat.request_full_sync,
        )

    async def _route_get(self, request: pb.RouteGetRequest, _: ServicerContext[Any, Any]) -> Message:
        found = self.state.find(request.key, request.node_id, request.exclude_nodes)
        if found is None:
            return pb.RouteGetResponse()
        node, at = found
        return pb.RouteGetResponse(
            found=True,
            node_id=node,
            tier=at.tier,  # type: ignore[arg-type]
            size=at.size,
            peer_address=self.state.clients.address(node),
        )

    async def _batch_route_get(self, request: pb.BatchRouteGetRequest, _: ServicerContext[Any, Any]) -> Message:
        """Columns; `node_ref` counts `nodes` from 1, 0 is a miss."""
        reply = pb.BatchRouteGetResponse()
        refs: dict[str, int] = {}
        for key in request.keys:
            found = self.state.find(key, request.node_id, request.exclude_nodes)
            if found is None:
                reply.node_ref.append(0)
                reply.tier.append(pb.TIER_UNKNOWN)
                reply.size.append(0)
                continue
            node, at = found
            if node not in refs:
                refs[node] = len(refs) + 1
                reply.nodes.add(node_id=node, peer_address=self.state.clients.address(node))
            reply.node_ref.append(refs[node])
            reply.tier.append(at.tier)  # type: ignore[arg-type]
            reply.size.append(at.size)
        return reply

    async def _route_put(self, request: pb.RoutePutRequest, _: ServicerContext[Any, Any]) -> Message:
        (members,) = self._placed([request.key], [request.block_size], list(request.exclude_nodes))
        return pb.RoutePutResponse(**members)

    async def _batch_route_put(self, request: pb.BatchRoutePutRequest, context: ServicerContext[Any, Any]) -> Message:
        if len(request.keys) != len(request.block_sizes):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "one block size a key, please")
        placed = self._placed(list(request.keys), list(request.block_sizes), list(request.exclude_nodes))
        return pb.BatchRoutePutResponse(entries=[pb.BatchRoutePutEntry(**members) for members in placed])

    async def _batch_lookup(self, request: pb.BatchLookupRequest, _: ServicerContext[Any, Any]) -> Message:
        return pb.BatchLookupResponse(found=[self.state.exists(key) for key in request.keys])

    async def _report(self, request: pb.ReportExternalKvBlocksRequest, _: ServicerContext[Any, Any]) -> Message:
        self.state.report(request.node_id, request.hashes, request.tier, self._clock_ms())
        return pb.ReportExternalKvBlocksResponse()

    async def _revoke(self, request: pb.RevokeExternalKvBlocksRequest, _: ServicerContext[Any, Any]) -> Message:
        self.state.revoke(request.node_id, request.hashes, request.tier, self._clock_ms())
        return pb.RevokeExternalKvBlocksResponse()

    async def _revoke_tier(self, request: pb.RevokeAllExternalKvBlocksAtTierRequest, _: ServicerContext[Any, Any]) -> Message:
        self.state.revoke_tier(request.node_id, request.tier, self._clock_ms())
        return pb.RevokeAllExternalKvBlocksAtTierResponse()

    async def _revoke_node(self, request: pb.RevokeAllExternalKvBlocksForNodeRequest, _: ServicerContext[Any, Any]) -> Message:
        self.state.revoke_node(request.node_id)
        return pb.RevokeAllExternalKvBlocksForNodeResponse()

    async def _match(self, request: pb.MatchExternalKvRequest, _: ServicerContext[Any, Any]) -> Message:
        reply = pb.MatchExternalKvResponse()
        for node, tiers in self.state.match(list(request.hashes), count=request.count_as_hit).items():
            match = reply.matches.add(node_id=node, peer_address=self.state.clients.address(node))
            for tier, hashes in sorted(tiers.items()):
                match.hashes_by_tier.add(tier=tier, hashes=hashes)
        return reply

    async def _hit_counts(self, request: pb.GetExternalKvHitCountsRequest, context: ServicerContext[Any, Any]) -> Message:
        if len(request.hashes) > MAX_HIT_QUERY:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"at most {MAX_HIT_QUERY} hashes a query")
        hits = self.state.hits(request.hashes)
        entries = [pb.HitCountEntry(hash=text, hit_count_total=count) for text, count in hits.items()]
        return pb.GetExternalKvHitCountsResponse(entries=entries)

    async def _metrics(self, request: pb.ReportMetricsRequest, _: ServicerContext[Any, Any]) -> Message:
        self.metric_samples += len(request.metrics)
        return pb.ReportMetricsResponse()

    def _placed(self, keys: list[str], sizes: list[int], exclude: list[str]) -> list[dict[str, Any]]:
        members: list[dict[str, Any]] = []
        for placed in self.state.place(keys, sizes, exclude):
            if placed.exists:
                members.append({"outcome": pb.ROUTE_PUT_OUTCOME_ALREADY_EXISTS})
            elif not placed.node:
                members.append({"outcome": pb.ROUTE_PUT_OUTCOME_UNAVAILABLE})
            else:
                address = self.state.clients.address(placed.node)
                where = {"node_id": placed.node, "tier": placed.tier, "peer_address": address}
                members.append({"outcome": pb.ROUTE_PUT_OUTCOME_ROUTED, **where})
        return members


def _capacities(capacities: Any) -> tuple[Capacity, ...]:
    return tuple(Capacity(each.tier, each.total_capacity_bytes, each.available_capacity_bytes) for each in capacities)


def _event(event: pb.KvEvent) -> Event:
    return Event(event.kind == pb.KvEvent.ADD, event.key, event.tier, event.size)
