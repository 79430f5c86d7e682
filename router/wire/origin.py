"""Where an engine listens, as a value that is parsed once. Knows nothing of connections or of what the engine is."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(msgspec.Struct, frozen=True):
    """One scheme, host and port (RFC 6454). `host` is a name or a bare address: an IPv6 address comes without brackets."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read `scheme://host[:port][/]`. Raises ValueError naming the URL and what is wrong with it."""
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError(f"{url!r}: expected http://host:port or https://host:port")
        if not parts.hostname:
            raise ValueError(f"{url!r}: no host")
        if parts.username is not None or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"{url!r}: give only scheme, host and port")
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}") from error
        return cls(parts.hostname, DEFAULT_PORTS[parts.scheme] if port is None else port, parts.scheme == "https")

    @property
    def authority(self) -> str:
        """The value of the Host header: an IPv6 address in brackets, and the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"
