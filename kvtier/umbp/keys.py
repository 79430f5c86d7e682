"""UMBP's strings as block ids: engines' decimal hashes, pool keys that begin with a SHA-256 in hex, anything else by digest."""

from __future__ import annotations

import re
from hashlib import blake2b

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_DECIMAL = re.compile(r"-?\d{1,20}")
_SIGN = 1 << 63
_WRAP = 1 << 64


def block_id(key: str) -> int:
    """Signed 64 bits. A pool key `{sha256}_{suffix}` and the engine's event id of the same block come out equal."""
    if _DIGEST.match(key):
        return int.from_bytes(bytes.fromhex(key[:16]), "big", signed=True)
    if _DECIMAL.fullmatch(key):
        number = int(key) % _WRAP
        return number - _WRAP if number >= _SIGN else number
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)
