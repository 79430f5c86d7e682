"""Members that the bodies of `/v1/kv/prefetch` and `/v1/kv/pins` share, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MAX_LENGTH = 1 << 20  # tokens; longer than any model's context

Name = Annotated[str, Field(max_length=1024)]
TokenIds = Annotated[list[Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]], Field(min_length=1, max_length=_MAX_LENGTH)]
PageHashes = Annotated[list[Name], Field(min_length=1, max_length=_MAX_LENGTH)]  # whole digests in hex, from the first page on
