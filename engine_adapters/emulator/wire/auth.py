"""Which request may pass when keys are set: SGLang's rule (wire: srt/utils/auth.py)."""

from __future__ import annotations

import secrets

_OPEN = ("/health", "/ready", "/metrics", "/_emulator/")
_ADMIN = frozenset({"/flush_cache", "/abort_request"})  # the admin key alone opens them where there is one


def allowed(path: str, authorization: str | None, api_key: str | None, admin_key: str | None) -> bool:
    if path.startswith(_OPEN):
        return True
    expected = (admin_key or api_key) if path in _ADMIN else api_key
    return expected is None or _bears(authorization, expected)


def _bears(authorization: str | None, expected: str) -> bool:
    scheme, _, token = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(token.encode(), expected.encode())
