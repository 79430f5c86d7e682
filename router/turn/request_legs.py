"""Step 7, the sending half: what each leg of one try carries. Builds heads and bodies; the client's bytes stay as they came."""

from __future__ import annotations

from random import Random

import msgspec

from costmodel.values import Role
from engine_adapters.base import Edit, EngineAdapter
from engine_adapters.sglang.rooms import fresh_room
from router.body.splice import splice
from router.errors import EngineError
from router.fleet.worker import Worker
from router.turn.legs import Leg
from router.turn.place import Placement
from router.turn.turn import Turn
from router.wire.head import Header, build_head

_CLIENT_KEY_HEADERS = frozenset((b"authorization", b"x-api-key"))


def build_legs(
    turn: Turn, placement: Placement, rid: str, rng: Random, *, hide_client_key: bool, override: bytes = b""
) -> list[Leg]:
    """The legs of one try, prefill first. `override`: members that replace the client's (the `n` of a fanned-out request).

    Raises EngineError when the prefill worker's bootstrap port is not known yet.
    """
    edit = Edit(
        turn.request.path,
        turn.scanned.stream,
        rid,
        prefill_dp_rank=_rank(placement.prefill, placement.prefill_rank),
        decode_dp_rank=_rank(placement.decode, placement.decode_rank),
        want_usage=not turn.scanned.asks_usage,
        stream_options=turn.scanned.stream_options,
    )
    if not placement.disaggregated:
        return [_leg(turn, placement.prefill, edit, hide_client_key, override)]
    prefill_edit = _pair_edit(edit, placement, rng)
    decode_edit = msgspec.structs.replace(prefill_edit, leg=Role.DECODE)
    return [
        _leg(turn, placement.prefill, prefill_edit, hide_client_key, override),
        _leg(turn, placement.decode, decode_edit, hide_client_key, override),
    ]


def _pair_edit(edit: Edit, placement: Placement, rng: Random) -> Edit:
    """Both legs meet in one room, fresh for every try; its residue picks the rank where the engine follows the room."""
    prefill = placement.prefill
    if prefill.bootstrap_port is None:
        raise EngineError(f"{prefill.worker_id} told no bootstrap port: set `bootstrap_port` for it in the pool")
    return msgspec.structs.replace(
        edit,
        leg=Role.PREFILL,
        bootstrap_host=prefill.bootstrap_host,
        bootstrap_port=prefill.bootstrap_port,
        bootstrap_room=fresh_room(rng, len(prefill.ranks), placement.prefill_rank),
    )


def _leg(turn: Turn, worker: Worker, edit: Edit, hide_client_key: bool, override: bytes) -> Leg:
    members = b",".join(part for part in (worker.adapter.members(edit), override) if part)
    parts = splice(turn.request.body, members)
    head = build_head(
        b"POST",
        _target(turn),
        worker.origin.authority.encode(),
        turn.request.headers,
        sum(map(len, parts)),
        drop=_dropped(worker, worker.adapter, hide_client_key),
        add=_added(worker, edit),
    )
    return Leg(worker, head, parts)


def _target(turn: Turn) -> bytes:
    path = turn.request.path.encode()
    return path + b"?" + turn.request.query if turn.request.query else path


def _dropped(worker: Worker, adapter: EngineAdapter, hide_client_key: bool) -> frozenset[bytes]:
    """A client may not override the body by header; its key goes on only where neither gateway nor worker has one."""
    if hide_client_key or worker.config.api_key:
        return adapter.reserved_headers | _CLIENT_KEY_HEADERS
    return adapter.reserved_headers


def _added(worker: Worker, edit: Edit) -> list[Header]:
    added = list(worker.adapter.headers(edit))
    if worker.config.api_key:
        added.append((b"authorization", b"Bearer " + worker.config.api_key.encode()))
    return added


def _rank(worker: Worker, rank: int) -> int | None:
    """Named only where there is a choice: engines with one rank may not know the field."""
    return rank if len(worker.ranks) > 1 else None
