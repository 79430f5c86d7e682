"""Step 7, the sending half: what each leg of one try carries. Builds heads and bodies; the client's bytes stay as they came."""

from __future__ import annotations

from functools import cache
from random import Random

import msgspec

from costmodel.values import Role
from engine_adapters.base import Edit
from engine_adapters.sglang.rooms import fresh_room
from router.body.splice import splice
from router.errors import EngineError
from router.fleet.worker import Worker
from router.turn.legs import Leg
from router.turn.place import Placement
from router.turn.turn import Turn
from router.wire.head import Header, build_head
from router.wire.request import HotRequest

_OVERRIDE_PREFIX = b"x-override-"  # whatever an engine may come to read under it, it is not a client's to set
_CLIENT_KEY_HEADERS = frozenset((b"authorization", b"x-api-key"))


def build_legs(
    turn: Turn, placement: Placement, rid: str, rng: Random, *, hide_client_key: bool, override: bytes = b""
) -> list[Leg]:
    """The legs of one try, prefill first. `override`: members that replace the client's (the `n` of a fanned-out request).

    Raises EngineError when the prefill worker's bootstrap port is not known yet.
    """
    scanned = turn.scanned
    edit = Edit(
        turn.request.path,
        scanned.stream,
        rid,
        prefill_dp_rank=_rank(placement.prefill, placement.prefill_rank),
        decode_dp_rank=_rank(placement.decode, placement.decode_rank),
        want_usage=scanned.stream and not scanned.asks_usage,
        stream_options=scanned.stream_options,
        input_ids=turn.prompt.take_ids() if turn.prompt is not None else None,
    )
    if not placement.disaggregated:
        return [_leg(turn, placement.prefill, edit, _body(turn, edit, override), hide_client_key)]
    edit = _pair_edit(edit, placement, rng)
    body = _body(turn, edit, override)
    legs = [_leg(turn, placement.prefill, edit, body, hide_client_key)]
    if edit.prefill_dp_rank is not None or edit.decode_dp_rank is not None:  # only ranks tell the two bodies apart
        edit = msgspec.structs.replace(edit, leg=Role.DECODE)
        body = _body(turn, edit, override)
    return [*legs, _leg(turn, placement.decode, edit, body, hide_client_key)]


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


def _body(turn: Turn, edit: Edit, override: bytes) -> list[bytes | memoryview]:
    members = turn.pool.adapter.members(edit)
    if override:
        members = members + b"," + override if members else override
    return splice(turn.request.body, members)


def _leg(turn: Turn, worker: Worker, edit: Edit, body: list[bytes | memoryview], hide_client_key: bool) -> Leg:
    request, adapter, key = turn.request, worker.adapter, worker.config.api_key
    added: list[Header] = list(adapter.headers(edit))
    if key:
        added.append((b"authorization", b"Bearer " + key.encode()))
    head = build_head(
        b"POST",
        _target(request),
        worker.host_field,
        [header for header in request.headers if not header[0].startswith(_OVERRIDE_PREFIX)],
        sum(map(len, body)),
        # A client may not override the body by header; its key goes on only where neither gateway nor worker has one.
        drop=_with_keys(adapter.reserved_headers) if hide_client_key or key else adapter.reserved_headers,
        add=added,
    )
    return Leg(worker, head, body)


def _target(request: HotRequest) -> bytes:
    path = request.path.encode()
    return path + b"?" + request.query if request.query else path


@cache
def _with_keys(reserved: frozenset[bytes]) -> frozenset[bytes]:
    return reserved | _CLIENT_KEY_HEADERS


def _rank(worker: Worker, rank: int) -> int | None:
    """Named only where there is a choice: engines with one rank may not know the field."""
    return rank if len(worker.ranks) > 1 else None
