"""What may be spliced into a request for SGLang, path by path (checked in 0.5.23's entrypoints and on its wire).

| path | request id | usage in a stream | cache details | PD and DP fields |
|---|---|---|---|---|
| chat, completions | `rid` | `stream_options` | `return_cached_tokens_details` | yes |
| responses | `request_id`, which is also the reply's id | always there | no | yes |
| messages | only by the header `x-override-rid`, where the server allows it | always there | no | yes |
| messages/count_tokens | none: nothing is generated | | | no |

Pure. Knows nothing of the bytes around the members.
"""

from __future__ import annotations

import msgspec

from costmodel.values import Role
from engine_adapters.base import Edit
from engine_adapters.stream_options import usage_member


class PathWire(msgspec.Struct, frozen=True):
    rid_key: bytes | None = None
    rid_prefix: str = ""
    rid_header: bytes | None = None
    stream_usage: bool = False
    cache_details: bool = False
    input_ids: bool = False
    routed: bool = True


PATHS = {
    "/v1/chat/completions": PathWire(rid_key=b"rid", stream_usage=True, cache_details=True, input_ids=True),
    "/v1/completions": PathWire(rid_key=b"rid", stream_usage=True, cache_details=True),
    "/v1/responses": PathWire(rid_key=b"request_id", rid_prefix="resp_"),
    "/v1/messages": PathWire(rid_header=b"x-override-rid"),
    "/v1/messages/count_tokens": PathWire(routed=False),
}

_CACHE_DETAILS = b'"return_cached_tokens_details":true'
_encode = msgspec.json.Encoder().encode

RESERVED_KEYS = frozenset(
    {
        "rid",
        "request_id",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "routed_dp_rank",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "disagg_prefill_dp_rank",
        "kv_hints",
    }
)

RESERVED_HEADERS = frozenset(
    {
        b"x-override-rid",
        b"x-override-bootstrap-host",
        b"x-override-bootstrap-port",
        b"x-override-bootstrap-room",
        b"x-override-conversation-id",
        b"x-override-routed-dp-rank",
        b"x-override-disagg-prefill-dp-rank",
        b"x-override-priority",
        b"x-data-parallel-rank",
    }
)
"""Headers by which 0.5.23 lets a caller override the body (entrypoints/request_headers.py): a client may not set them."""


def request_id(path: str, token: str) -> str:
    """The request id for one try of a call of `path`; `token` is fresh (hex).

    No id may be a prefix of another: SGLang's scheduler aborts by prefix, so tokens must have one length.
    """
    return PATHS[path].rid_prefix + token if path in PATHS else token


def members(edit: Edit) -> bytes:
    """The members to splice before the body's final brace, without a leading comma. The last of equal keys wins in SGLang."""
    wire = PATHS.get(edit.path)
    if wire is None:
        return b""
    parts = []
    if wire.rid_key is not None:
        parts.append(_member(wire.rid_key, edit.rid))
    if wire.stream_usage and edit.stream and edit.want_usage:
        parts.append(usage_member(edit.stream_options))
    if wire.cache_details:
        parts.append(_CACHE_DETAILS)
    if wire.input_ids and edit.input_ids is not None:
        parts.append(b'"input_ids":' + edit.input_ids)
    if wire.routed:
        parts += _bootstrap(edit)
        parts += _ranks(edit)
    return b",".join([part for part in parts if part])


def headers(edit: Edit) -> tuple[tuple[bytes, bytes], ...]:
    """Headers to add: the request id where the body has no place for it.

    A server heeds it only with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1; elsewhere such a call ends when its connection closes.
    """
    wire = PATHS.get(edit.path)
    if wire is None or wire.rid_header is None:
        return ()
    return ((wire.rid_header, edit.rid.encode("ascii")),)


def bracketed(host: str) -> str:
    """A host as SGLang's bootstrap address wants it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _bootstrap(edit: Edit) -> list[bytes]:
    if edit.bootstrap_room is None or edit.bootstrap_host is None:
        return []
    return [
        _member(b"bootstrap_host", bracketed(edit.bootstrap_host)),
        _member(b"bootstrap_port", edit.bootstrap_port),
        _member(b"bootstrap_room", edit.bootstrap_room),
    ]


def _ranks(edit: Edit) -> list[bytes]:
    """`routed_dp_rank` is the rank that serves this leg; decode is told besides which prefill rank holds the KV."""
    own = edit.decode_dp_rank if edit.leg is Role.DECODE else edit.prefill_dp_rank
    parts = [] if own is None else [_member(b"routed_dp_rank", own)]
    if edit.leg is Role.DECODE and edit.prefill_dp_rank is not None:
        parts.append(_member(b"disagg_prefill_dp_rank", edit.prefill_dp_rank))
    return parts


def _member(key: bytes, value: object) -> bytes:
    return b'"%b":%b' % (key, _encode(value))
