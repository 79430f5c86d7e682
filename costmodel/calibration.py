"""What was learned of a worker or a pool, as one value that outlives the process which learned it."""

from __future__ import annotations

import math

import msgspec

from costmodel.restore import KnownRestore
from costmodel.values import DecodeRates, Link, PrefillRates


class Calibration(msgspec.Struct, frozen=True):
    """`prefill` and `decode` are None where nothing was observed. Raises `ValueError` for what no estimator would have said."""

    prefill: PrefillRates | None = None
    decode: DecodeRates | None = None
    transfer: Link | None = None
    queue_factor: float = 1.0
    admit_factor: float = 1.0
    reuse_share: float = 1.0
    restore: KnownRestore = KnownRestore()

    def __post_init__(self) -> None:
        for part in (self.prefill, self.decode, self.transfer, *self.restore.links.values()):
            if part is not None:
                _require_sane(msgspec.structs.asdict(part))
        _require_sane(self.restore.factors)
        _require_sane({"queue_factor": self.queue_factor, "admit_factor": self.admit_factor, "reuse_share": self.reuse_share})


def _require_sane(figures: dict[str, float]) -> None:
    for name, figure in figures.items():
        if not 0 <= figure < math.inf:
            raise ValueError(f"{name} must be finite and not negative, not {figure}")
