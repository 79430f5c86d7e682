"""Bootstrap rooms: the numbers under which a prefill and a decode leg meet. Pure; the random generator is the caller's.

Room 0 is never used, because SGLang's decode reads 0 as "metadata not ready" and waits for ever. Where an engine follows the
room (`load_balance_method: follow_bootstrap_room`, its default), the room's residue modulo dp_size is the prefill rank.
"""

from __future__ import annotations

from random import Random

ROOM_MAX = (1 << 63) - 1


def fresh_room(rng: Random, dp_size: int = 1, dp_rank: int = 0) -> int:
    """A room in 1..2^63-1 with `room % dp_size == dp_rank`. A new one is needed for every try of a pair.

    Raises ValueError when `dp_rank` is no rank of `dp_size`.
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank {dp_rank} is not within dp_size {dp_size}")
    lowest = 1 if dp_rank == 0 else 0
    highest = (ROOM_MAX - dp_rank) // dp_size
    return rng.randint(lowest, highest) * dp_size + dp_rank
