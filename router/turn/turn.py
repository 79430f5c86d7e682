"""One turn on its way through the nine steps: what was received and recognised, and what its tries have left behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.values import Turn as CostTurn
from router.body.scanned import Scanned
from router.dialects.dialect import Dialect
from router.fleet.pool import Pool
from router.prompts.job import PromptJob
from router.threads.lineage import State
from router.threads.sighting import Kind, Sighting
from router.turn.attempt import Attempt
from router.turn.due import Due
from router.turn.suspects import Suspects
from router.wire.request import HotRequest


@dataclass(slots=True, eq=False)
class Turn:
    turn_id: int
    request_id: str
    request: HotRequest
    dialect: Dialect
    scanned: Scanned[State]
    sighting: Sighting
    pool: Pool
    arrived_ms: float
    arrived_at_s: float  # wall clock
    tries: int = 0  # that were sent
    failed: set[str] = field(default_factory=set)  # workers that failed this turn: never tried again
    suspects: Suspects = field(default_factory=Suspects)  # of its failed workers, those that answered with a 5xx
    attempt: Attempt | None = None  # the running or last try
    prompt: PromptJob | None = None  # its prompt as the engine sees it, where that is derived
    due: Due | None = None  # when its first token is, where the policy knows deadlines

    def left_ms(self, now_ms: float) -> float | None:
        """Until its deadline, from now on."""
        return None if self.due is None else self.due.ttft_ms - (now_ms - self.arrived_ms)


def cost_turn(sighting: Sighting, deadline_ms: float | None = None) -> CostTurn:
    """What the policy hears of a turn. What others have sent before is a prefix that may be hot."""
    shared = sighting.kind in (Kind.NEW, Kind.FORK) and sighting.known > 0
    return CostTurn(
        sighting.thread,
        sighting.prompt_tokens,
        sighting.expected_output_tokens,
        sighting.known_tokens if sighting.kind is Kind.NEW else 0,
        sighting.prefill_before,
        sighting.decode_before,
        sighting.digests[sighting.known - 1] if shared else None,
        deadline_ms,
    )
