"""One prompt as it was last tokenised: ids, block hashes, and where both may be taken up again. No text.

States are values over shared tables. What two prompts have in common is kept once; a fork costs what it adds. In place of the
text, each piece between two cuts has a digest, and each message two: of its bytes and of what the template was given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from engine_adapters.prompt.body_prefix import BodyPrefix
from engine_adapters.prompt.loop_watch import LoopTrace
from engine_adapters.prompt.rope import Chunk, Rope
from kvtier.hashing.chain import BlockChain

STATE_BYTES = 2500
"""What a state costs beside its chunks, measured: the record, its ropes and their tuples."""

KEY_WORDS = 4
"""A message's key is 16 bytes, as four numbers."""

CUT_CHARS, CUT_TOKENS, CUT_CARRY, CUT_DIGEST = range(4)
CUT_WORDS = 5  # the digest takes two
MESSAGE_CHARS, MESSAGE_REACH, MESSAGE_IS_USERS, MESSAGE_SHAPE = range(4)
MESSAGE_WORDS = 3 + KEY_WORDS

_CHECKPOINT_TOKENS = 256


class PromptState(msgspec.Struct, frozen=True, eq=False):
    """`head`: digest of all that shapes the prompt beside its messages. Tables, one row each:

    `ids`: all tokens, or none where only hashes are kept. `blocks`: event ids of full blocks. `digests`: the whole digest of
    every `stride`-th block. `cuts`: characters, tokens and carry of a cut, and the digest of the text since the cut before.
    `raw_keys`: of the messages' bytes, zeros where a message was not rendered as it is. `messages`: characters before the
    message, the furthest message read for it, whether it is the user's, and the key of what the template was given.
    """

    root: BlockChain
    head: bytes
    trace: LoopTrace | None
    chars: int
    tokens: int
    ids: Rope
    blocks: Rope
    digests: Rope
    cuts: Rope
    raw_keys: Rope
    messages: Rope
    body: BodyPrefix | None = None

    @property
    def stride(self) -> int:
        return checkpoint_stride(self.root)

    @property
    def block_ids(self) -> array[int]:
        """Event ids of all full blocks, typecode q."""
        return self.blocks.slice(0, len(self.blocks))

    @property
    def exact_ids(self) -> array[int] | None:
        """All token ids, typecode I; None where they are not kept."""
        return self.ids.slice(0, len(self.ids)) if self.has_ids else None

    @property
    def has_ids(self) -> bool:
        return len(self.ids) == self.tokens

    @property
    def chunks(self) -> Iterator[Chunk]:
        for rope in (self.ids, self.blocks, self.digests, self.cuts, self.raw_keys, self.messages):
            yield from rope.chunks
        if self.body is not None:
            yield from self.body.spans.chunks
            if self.body.starts is not None:
                yield from self.body.starts.chunks

    @property
    def start_key(self) -> tuple[bytes, bytes]:
        """What another prompt must have for the two to begin alike: the head, and the key of the first message."""
        return self.head, self.raw_keys.row(0).tobytes() if len(self.raw_keys) else b""

    def parted_from(self, origin: PromptState) -> tuple[PromptState, PromptState]:
        """This state and the one of another thread that it was made from, so that they share what they have in common and
        nothing else. Both results are to be used in the place of the two."""
        mine: dict[str, Rope] = {}
        theirs: dict[str, Rope] = {}
        for name in _TABLES:
            mine[name], theirs[name] = getattr(self, name).parted_from(getattr(origin, name))
        return msgspec.structs.replace(self, **mine), msgspec.structs.replace(origin, **theirs)


_TABLES = ("ids", "blocks", "digests", "cuts", "raw_keys", "messages")


def empty_state(root: BlockChain) -> PromptState:
    return PromptState(
        root,
        b"",
        None,
        0,
        0,
        Rope("I"),
        Rope("q"),
        Rope("B", root.digest_bytes),
        Rope("I", CUT_WORDS),
        Rope("I", KEY_WORDS),
        Rope("I", MESSAGE_WORDS),
    )


def checkpoint_stride(root: BlockChain) -> int:
    """Blocks from one kept digest to the next: hashing a few again is cheaper than to keep all of theirs."""
    return max(1, _CHECKPOINT_TOKENS // root.page_size)
