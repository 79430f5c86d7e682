"""The address of a running gateway as users give it on the command line."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

DEFAULT_URL = "http://127.0.0.1:8000"


def checked_url(url: str | None) -> str | None:
    """Without a closing slash or `/v1`. Raises `typer.BadParameter` for what is no URL."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise typer.BadParameter(f"{url!r} is not a URL: give it with http://, such as {DEFAULT_URL}")
    return url.rstrip("/").removesuffix("/v1")


UrlOption = Annotated[str, typer.Option(help="The running gateway.", callback=checked_url)]
TokenOption = Annotated[str | None, typer.Option(help="The gateway's admin token.")]
