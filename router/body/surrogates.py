"""Lone surrogate escapes: invalid for strict JSON readers, accepted by the engines' reader, and real.

A JavaScript client that cuts text in the middle of an emoji sends `\\ud83d` alone. The body goes upstream as it came; only the
copy that the gateway reads is mended, byte for byte as long as the original so that offsets stay true.
"""

from __future__ import annotations

import re

# A valid pair or any other escape is consumed whole, so that an escaped backslash before "ud83d" is not mistaken for one.
_ESCAPE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})")


def mend_surrogates(text: bytes) -> bytes:
    """`text` with every lone surrogate escape replaced by `\\ufffd`; `text` itself where there is none."""
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found.group(1) else found.group(0), text)
