"""The `stream_options` member that makes an OpenAI stream end with its usage, keeping what the client asked for. Pure."""

from __future__ import annotations

import msgspec

_WANTED = b'"stream_options":{"include_usage":true}'


def usage_member(client: bytes | None) -> bytes:
    """`"stream_options":{…}` with `include_usage` true and the client's other options kept; `client` is its raw JSON, if any.

    Returns nothing for a value that is no object: the engine shall refuse it in its own words.
    """
    if client is None or client.strip() == b"null":
        return _WANTED
    try:
        options = msgspec.json.decode(client, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return b""
    options["include_usage"] = msgspec.Raw(b"true")
    return b'"stream_options":' + msgspec.json.encode(options)
