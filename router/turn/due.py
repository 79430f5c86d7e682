"""By when a turn's first token is due: by the class that its client names, else by the policy's own deadline."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from costmodel.params import Objective
from router.config.tree import PolicyConfig, SloConfig
from router.errors import BadRequest
from router.wire.head import Header

HEADER = b"x-loadback-class"
DEFAULT = "default"  # the class of turns that name none
_SHOWN_CHARS = 40


class Due(msgspec.Struct, frozen=True):
    """`ttft_ms` after arrival. `shed`: a turn that cannot have its first token by then is refused."""

    name: str
    ttft_ms: float
    shed: bool


def due_within(policy: PolicyConfig, headers: Iterable[Header], ttft_ms: float) -> Due:
    """With another deadline than the class has. Raises `BadRequest`, also where the objective knows no deadlines."""
    due = due_of(policy, headers)
    if due is None:
        raise BadRequest(
            f"no deadline counts under policy.objective {policy.objective.value}: set it to slo", param="deadline_ms"
        )
    return Due(due.name, ttft_ms, due.shed)


def due_of(policy: PolicyConfig, headers: Iterable[Header]) -> Due | None:
    """None where the objective knows no deadlines. Raises `BadRequest` for a class that is not declared."""
    if policy.objective is not Objective.SLO:
        return None
    name = (
        next((value.decode("utf-8", "replace").strip() for key, value in headers if key == HEADER), "")
        if policy.classes
        else ""
    )
    if name in ("", DEFAULT):
        return _due(DEFAULT, policy.classes.get(DEFAULT, policy.slo))
    if name not in policy.classes:
        known = ", ".join(sorted(policy.classes))
        raise BadRequest(f"no class {name[:_SHOWN_CHARS]!r}: x-loadback-class names one of {known}", param=HEADER.decode())
    return _due(name, policy.classes[name])


def _due(name: str, slo: SloConfig) -> Due:
    return Due(name, slo.ttft_ms, slo.shed)
