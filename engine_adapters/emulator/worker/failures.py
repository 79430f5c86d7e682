"""How SGLang words the failures of a disaggregated pair (wire: disaggregation/decode.py, prefill.py, common/conn.py)."""

from __future__ import annotations

from engine_adapters.emulator.worker.job import Job


def handshake_failed(job: Job) -> str:
    """The prefill worker could not be reached at all."""
    return f"Decode handshake failed for request {_decode(job)} with exception {_error(job)}: Aborted by AbortReq."


def transfer_failed(job: Job, reason: str) -> str:
    return f"Decode transfer failed for request {_decode(job)} with exception {_error(job)}: {reason}"


def peer_lost(job: Job, address: str) -> str:
    return transfer_failed(job, f"Lost connection with prefill instance (bootstrap_addr: {address})")


def transfer_timed_out(job: Job, after_s: float) -> str:
    return transfer_failed(job, f"Request {_room(job)} timed out after {after_s:.1f}s in KVPoll.WaitingForInput")


def bootstrap_timed_out(job: Job, after_s: float) -> str:
    """The decode half of a prefill request never came."""
    return (
        f"Prefill bootstrap failed for request {_prefill(job)} with exception {_error(job)}: Request {_room(job)} timed out "
        f"after {after_s:.1f}s in KVPoll.Bootstrapping"
    )


def bootstrap_failed(job: Job) -> str:
    """A prefill half was aborted while it waited for its partner."""
    return f"Prefill bootstrap failed for request {_prefill(job)} with exception {_error(job)}: Aborted by AbortReq."


def sending_failed(job: Job, reason: str) -> str:
    """A prefill half's KV could not be delivered."""
    return f"Prefill transfer failed for request {_prefill(job)} with exception {_error(job)}: {reason}"


def _prefill(job: Job) -> str:
    return f"rank=0 req.rid={job.rid!r} req.bootstrap_room={_room(job)}"


def _decode(job: Job) -> str:
    return f"rank=0 decode_req.req.rid={job.rid!r} decode_req.req.bootstrap_room={_room(job)}"


def _error(job: Job) -> str:
    return f"KVTransferError(bootstrap_room={_room(job)})"


def _room(job: Job) -> int | None:
    return job.bootstrap.room if job.bootstrap is not None else None
