"""Numbers and words that settings may have: what nobody can mean is refused with its key, before it does harm.

Also used inside engines: msgspec alone.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

_LONGEST_MS = 1e12  # 30 years
_MOST = 1 << 53

Ms = Annotated[float, Meta(ge=0, le=_LONGEST_MS)]
PauseMs = Annotated[float, Meta(ge=1, le=_LONGEST_MS)]  # what waits for less than 1 ms waits for nothing
TickMs = Annotated[float, Meta(ge=1, le=60_000)]  # leases, pins and writes end no later than that behind their time
Seconds = Annotated[float, Meta(ge=0.001, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e12)]  # of anything
Count = Annotated[int, Meta(ge=1, le=_MOST)]
CountOrNone = Annotated[int, Meta(ge=0, le=_MOST)]
Threads = Annotated[int, Meta(ge=1, le=1024)]
Size = Annotated[int, Meta(ge=1, le=_MOST)]  # bytes
BlockSize = Annotated[int, Meta(ge=4096, le=_MOST, multiple_of=4096)]  # bytes
ListenPort = Annotated[int, Meta(ge=0, le=65_535)]  # 0: the system chooses
Port = Annotated[int, Meta(ge=1, le=65_535)]
Text = Annotated[str, Meta(min_length=1)]
