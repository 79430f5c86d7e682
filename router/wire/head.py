"""Message heads as bytes: which fields end at this hop, and the request head that goes to an engine.

Pure functions. Field names come in lower case, as the parsers of this package deliver them; values and order are never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

Header = tuple[bytes, bytes]

# RFC 9110 7.6.1 and the older fields that clients still send per hop.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Rewritten by build_head, or answered by this hop.
_OWN_REQUEST_FIELDS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}


def connection_names(headers: Sequence[Header]) -> Collection[bytes]:
    """The fields that `Connection` declares hop-by-hop. Names that this package handles anyway do no harm in it."""
    if b"connection" not in dict(headers):  # the usual case, at C speed
        return ()
    names: list[bytes] = []
    for name, value in headers:
        if name == b"connection":
            names += [token.strip().lower() for token in value.split(b",")]
    return names


def end_to_end(headers: Sequence[Header], drop: Collection[bytes] = ()) -> list[Header]:
    """A reply's fields without those of the hop and without `drop`. `content-length` stays: it is the message's own."""
    gone = _with(HOP_BY_HOP, connection_names(headers))
    return [header for header in headers if header[0] not in gone and header[0] not in drop]


def build_head(
    method: bytes,
    target: bytes,
    host: bytes,
    headers: Sequence[Header],
    content_length: int | None,
    *,
    drop: Collection[bytes] = (),
    add: Sequence[Header] = (),
) -> bytes:
    """The request head for one engine: `host` first, the client's end-to-end fields in their order, `add`, `content-length`.

    `drop` names fields (lower case) that are not forwarded besides the hop-by-hop ones. `content_length` None: no body.
    """
    gone = _with(_OWN_REQUEST_FIELDS, connection_names(headers))
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, host)]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] not in gone and header[0] not in drop]
    if add:
        lines += [b"%b: %b\r\n" % header for header in add]
    lines.append(b"\r\n" if content_length is None else b"content-length: %d\r\n\r\n" % content_length)
    return b"".join(lines)


def _with(own: frozenset[bytes], named: Collection[bytes]) -> frozenset[bytes]:
    return own.union(named) if named else own
