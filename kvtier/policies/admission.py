"""Which pages are worth writing to SSD."""

from __future__ import annotations

import msgspec

from kvtier.policies.use import PageUse
from kvtier.settings.ranges import CountOrNone


class AdmitAll(msgspec.Struct, frozen=True, tag="all", tag_field="policy", forbid_unknown_fields=True):
    def admits(self, use: PageUse) -> bool:
        return True


class AdmitReused(msgspec.Struct, frozen=True, tag="reused", tag_field="policy", forbid_unknown_fields=True):
    """Pages that were read at least `min_hits` times: one-off prompts cost the SSD no writes."""

    min_hits: CountOrNone = 1

    def admits(self, use: PageUse) -> bool:
        return use.hits >= self.min_hits


class AdmitNone(msgspec.Struct, frozen=True, tag="none", tag_field="policy", forbid_unknown_fields=True):
    def admits(self, use: PageUse) -> bool:
        return False


AdmissionPolicy = AdmitAll | AdmitReused | AdmitNone
