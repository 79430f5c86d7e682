"""Origins parse once, and say what is wrong."""

from __future__ import annotations

import pytest

from router.wire.origin import Origin


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "authority"),
    [
        ("http://10.0.0.1:30000", "10.0.0.1", 30000, False, "10.0.0.1:30000"),
        ("http://worker/", "worker", 80, False, "worker"),
        ("https://api.example", "api.example", 443, True, "api.example"),
        ("https://api.example:80", "api.example", 80, True, "api.example:80"),
        ("http://[fd00::1]:30000", "fd00::1", 30000, False, "[fd00::1]:30000"),
    ],
)
def test_parses(url: str, host: str, port: int, tls: bool, authority: str) -> None:
    origin = Origin.parse(url)
    assert (origin.host, origin.port, origin.tls, origin.authority) == (host, port, tls, authority)
    assert Origin.parse(str(origin)) == origin


@pytest.mark.parametrize(
    "url", ["worker:30000", "ftp://w:1", "http://", "http://w:1/v1", "http://w:99999", "http://u:p@w:1", "http://w:1?a"]
)
def test_refuses_and_names_the_url(url: str) -> None:
    with pytest.raises(ValueError) as error:
        Origin.parse(url)
    assert url in str(error.value)
