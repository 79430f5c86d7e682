"""What a pool believes of its workers before anything was measured: what is written of them, else what data sheets say of the
machine and the model that it names. The arithmetic is the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from costmodel.hardware import BYTES_PER_MS_PER_GBS, HardwarePrior
from costmodel.roofline import Accelerator, Deployment, DeploymentError, ModelShape, compute_type, kv_tokens, prior
from costmodel.values import Link
from router.config.data_sheets import DataSheetError, load_accelerator, load_model
from router.config.tree import HardwareConfig, MachineConfig

Sheet = TypeVar("Sheet", Accelerator, ModelShape)


class BeliefError(Exception):
    """Data sheets do not give usable beliefs. One line for each fault; `key` is that of `machine` which is to be mended."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def believed(hardware: HardwareConfig) -> HardwareConfig:
    """With what its `machine` says for every key that is not given. Raises `BeliefError`; reads files."""
    machine = hardware.machine
    if machine is None:
        return hardware
    given = {key: getattr(hardware, key) for key in hardware.model_fields_set}
    try:
        return HardwareConfig.model_validate(told_by(_prior(machine)) | given)
    except ValidationError as error:
        lines = [f"{machine.accelerator} and {machine.model} make {_fault(fault)}" for fault in error.errors()]
        raise BeliefError("accelerator", "\n".join(lines)) from error


def told_by(prior: HardwarePrior) -> dict[str, object]:
    """By the keys of the section."""
    return {
        "prefill_base_ms": prior.prefill.base_ms,
        "prefill_ms_per_token": prior.prefill.ms_per_token,
        "prefill_ms_per_token2": prior.prefill.ms_per_token2,
        "prefill_ms_per_cached_token": prior.prefill.ms_per_cached_token,
        "itl_base_ms": prior.decode.itl_base_ms,
        "itl_ms_per_running": prior.decode.itl_ms_per_running,
        "kv_bytes_per_token": prior.kv_bytes_per_token,
        "l2_link": _told_link(prior.host),
        "l3_link": _told_link(prior.pool_remote),
        "l4_link": _told_link(prior.ssd),
        "pd_link": _told_link(prior.transfer),
    }


def _fault(fault: ErrorDetails) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    return f"{key} {fault['input']}: {fault['msg']}; mend their files, or give {fault['loc'][0]} beside `machine`"


def _told_link(link: Link) -> dict[str, float]:
    return {"latency_ms": link.latency_ms, "gb_per_s": link.bytes_per_ms / BYTES_PER_MS_PER_GBS}


def _prior(machine: MachineConfig) -> HardwarePrior:
    accelerator = _sheet("accelerator", load_accelerator, machine.accelerator)
    model = _sheet("model", load_model, machine.model)
    try:
        deployment = _deployment(machine, accelerator)
        kv_tokens(accelerator, model, deployment)  # says so where the weights do not fit
        return prior(accelerator, model, deployment)
    except DeploymentError as error:
        raise BeliefError(error.key, str(error)) from error


def _sheet(key: str, load: Callable[[str], Sheet], name: str) -> Sheet:
    try:
        return load(name)
    except DataSheetError as error:
        raise BeliefError(key, str(error)) from error


def _deployment(machine: MachineConfig, accelerator: Accelerator) -> Deployment:
    """All of HBM may be used: what an engine keeps free is its own affair, and no belief."""
    return Deployment(
        accelerators=machine.accelerators,
        compute_type=machine.compute_type or compute_type(accelerator, machine.weight_type),
        weight_type=machine.weight_type,
        kv_element_bytes=machine.kv_type.element_bytes,
        mfu=machine.mfu,
        memory_fraction=1.0,
        decode_context_tokens=machine.decode_context_tokens,
        hbm_share=machine.hbm_share,
    )
