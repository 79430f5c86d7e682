"""The permitted edits: everything that loadback ever changes in a request or a reply, and nothing else.

Requests, all spliced in before the body's final brace (`splice`), in the engine's own words (`EngineAdapter.members`):

| edit | when |
|---|---|
| the request id (`rid`, ...) | always, where the engine takes one: aborts go by it |
| `bootstrap_host`, `bootstrap_port`, `bootstrap_room` | on both legs of a disaggregated pair, a fresh room for every try |
| the data-parallel rank | where a rank was chosen and the engine takes one |
| usage and cache-detail flags | where the client has not set them; `stream_options` is repeated with `include_usage` added |
| the prompt's token ids (`input_ids`) | with `prompt.forward_ids`, on chats of threads whose prompts were found exact |
| `"n":1` | when one request is split into n (`fanout`) |

Replies:

| edit | when |
|---|---|
| the usage chunk is dropped, `sglext` is cut out (`strip`) | only where the client had not asked for them |
| the prompt's log probabilities are added (`logprobs`) | with `echo` and `logprobs` on a pair: only prefill has them |
| choice indexes, and one id for all chunks | when a request was split into n (`fanout`) |

Header edits are in `router.wire.head`. A client may not set the keys that the first table adds, since some are obeyed by
engines even where loadback adds nothing: they are refused.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from router.body.scanned import Scanned
from router.errors import BadRequest


def refuse_reserved(scanned: Scanned[Any], reserved: AbstractSet[str]) -> None:
    """Raise BadRequest if the client has set a key that belongs to the gateway. `reserved` is the engine adapter's set."""
    for key in scanned.reserved:
        if key in reserved:
            raise BadRequest(f"{key} is set by the gateway: remove it from the body", param=key)
