"""vLLM's block identity: a chain of hashes over (parent, token ids of one block, extra keys), by the server's hash function.

`sha256` and `xxhash` hash the tuple as CPython pickles it, `sha256_cbor` and `xxhash_cbor` as canonical CBOR. The first block's
parent is NONE_HASH, the hash of a seed: PYTHONHASHSEED where the server has it, else a fixed word for SHA-256 and a random one
for xxHash, whose ids can then not be derived. Events carry the digest's last 8 bytes. Checked against captures of vLLM 0.32
(v1/core/kv_cache_utils.py, utils/hashing.py).

Extra keys: a LoRA adapter is part of every block, `cache_salt` of the first. Media are not known here.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import sha256

import msgspec
import xxhash

SLAB_TOKENS = 16_384
"""Tokens that are handed over at once: making a tuple of more would keep other threads waiting for the interpreter."""

_DEFAULT_SEED = "vllm-none-hash"

ExtraKeys = tuple[tuple[str, ...], ...]


class HashAlgorithm(StrEnum):
    """The server's `--prefix-caching-hash-algo`."""

    SHA256 = "sha256"
    SHA256_CBOR = "sha256_cbor"
    XXHASH = "xxhash"
    XXHASH_CBOR = "xxhash_cbor"


class Lora(msgspec.Struct, frozen=True):
    """An adapter as the server was told of it: both words count."""

    name: str
    path: str


class Chain(msgspec.Struct, frozen=True):
    """The hashed part of one token sequence; extending it costs only the new blocks. Make one with `root`."""

    page_size: int
    algorithm: HashAlgorithm
    none_hash: bytes
    lora: Lora | None = None
    cache_salt: str | None = None
    digest: bytes = b""  # of the last full block, or nothing
    tail: tuple[int, ...] = ()
    pages: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size must be at least 1, not {self.page_size}")

    @property
    def tokens(self) -> int:
        """Tokens given so far."""
        return self.pages * self.page_size + len(self.tail)

    @property
    def digest_bytes(self) -> int:
        return len(self.none_hash)

    def full_pages(self, tokens: int) -> int:
        return tokens // self.page_size

    def resumed(self, pages: int, digest: bytes, tail: Sequence[int]) -> Chain:
        """This root's chain after `pages` blocks, the last of which has this digest, and the tokens that follow them."""
        return msgspec.structs.replace(self, digest=digest if pages else b"", tail=tuple(tail), pages=pages)

    def ids(self, digests: Sequence[bytes]) -> array[int]:
        """Event ids as array `q`."""
        return array("q", map(event_id, digests))

    def extend(self, tokens: Sequence[int]) -> tuple[Chain, tuple[int, ...]]:
        """The chain after `tokens` and the event ids of the blocks that they filled."""
        chain, digests = self.extend_digests(tokens)
        return chain, tuple(map(event_id, digests))

    def extend_digests(self, tokens: Sequence[int]) -> tuple[Chain, list[bytes]]:
        """As `extend`, with whole digests (32 bytes, 16 of xxHash)."""
        chain, digests = self, list[bytes]()
        for start in range(0, max(len(tokens), 1), SLAB_TOKENS):
            chain, found = chain._extend(tokens[start : start + SLAB_TOKENS])
            digests += found
        return chain, digests

    def _extend(self, tokens: Sequence[int]) -> tuple[Chain, list[bytes]]:
        data = (*self.tail, *tokens)
        hash_block = _HASHES[self.algorithm]
        always: ExtraKeys = (("lora", self.lora.name, self.lora.path),) if self.lora else ()
        first: ExtraKeys = (*always, ("cache_salt", self.cache_salt)) if self.cache_salt else always
        size = self.page_size
        full = len(data) // size
        digest = self.digest or self.none_hash
        digests = []
        for page in range(full):
            extra = first if self.pages + page == 0 else always
            digest = hash_block((digest, data[page * size : (page + 1) * size], extra or None))
            digests.append(digest)
        chain = msgspec.structs.replace(
            self, digest=digest if self.pages + full else b"", tail=data[full * size :], pages=self.pages + full
        )
        return chain, digests


Block = tuple[bytes, tuple[int, ...], ExtraKeys | None]


def root(
    page_size: int,
    algorithm: HashAlgorithm = HashAlgorithm.SHA256,
    *,
    hash_seed: str | None = None,
    lora: Lora | None = None,
    cache_salt: str | None = None,
) -> Chain:
    """A chain over no tokens. `hash_seed`: the server's PYTHONHASHSEED. Raises ValueError for xxHash without one."""
    return Chain(page_size, algorithm, none_hash(algorithm, hash_seed), lora, cache_salt)


def none_hash(algorithm: HashAlgorithm, hash_seed: str | None) -> bytes:
    """The first block's parent."""
    if hash_seed is None and algorithm in (HashAlgorithm.XXHASH, HashAlgorithm.XXHASH_CBOR):
        raise ValueError(f"{algorithm} block ids cannot be derived: start vLLM with PYTHONHASHSEED and say so, or use sha256")
    return _HASHES[algorithm](_DEFAULT_SEED if hash_seed is None else hash_seed)


def event_id(digest: bytes) -> int:
    """What the engine's events call a block; the wire's unsigned integer, taken as signed."""
    return int.from_bytes(digest[-8:], "big", signed=True)


def event_ids(tokens: Sequence[int], chain: Chain) -> tuple[int, ...]:
    """Event ids of all full blocks of a whole prompt."""
    return chain.extend(tokens)[1]


def _pickled(value: str | Block) -> bytes:
    """Protocol 5 is the highest of every Python that runs vLLM."""
    return pickle.dumps(value, protocol=5)


def _cbor(value: str | bytes | int | Sequence[object] | None) -> bytes:
    """Canonical CBOR (RFC 8949 4.2) of the kinds that occur."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    return _cbor_head(4, len(value)) + b"".join(map(_cbor, value))  # type: ignore[arg-type]


def _cbor_head(major: int, number: int) -> bytes:
    kind = major << 5
    if number < 24:
        return bytes((kind | number,))
    if number < 1 << 8:
        return bytes((kind | 24, number))
    if number < 1 << 16:
        return struct.pack(">BH", kind | 25, number)
    if number < 1 << 32:
        return struct.pack(">BI", kind | 26, number)
    return struct.pack(">BQ", kind | 27, number)


_HASHES: dict[HashAlgorithm, Callable[[str | Block], bytes]] = {
    HashAlgorithm.SHA256: lambda value: sha256(_pickled(value)).digest(),
    HashAlgorithm.SHA256_CBOR: lambda value: sha256(_cbor(value)).digest(),
    HashAlgorithm.XXHASH: lambda value: xxhash.xxh3_128_digest(_pickled(value)),
    HashAlgorithm.XXHASH_CBOR: lambda value: xxhash.xxh3_128_digest(_cbor(value)),
}
