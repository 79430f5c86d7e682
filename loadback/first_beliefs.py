"""Says what a pool believes at first of the machine that its file names."""

from __future__ import annotations

from router.config.tree import HardwareConfig, LinkConfig, PoolConfig


def first_beliefs(pool: PoolConfig) -> str | None:
    """In one line, as the section's own keys; None where no machine is named and the file says it all."""
    machine = pool.hardware.machine
    if machine is None:
        return None
    keys = [key for key in HardwareConfig.model_fields if key != "machine"]
    values = ", ".join(f"{key}: {_spelled(getattr(pool.hardware, key))}" for key in keys)
    return f"{machine.accelerators} x {machine.accelerator}, {machine.model} in {machine.weight_type.value}: {values}"


def _spelled(value: float | LinkConfig) -> str:
    if isinstance(value, LinkConfig):
        return f"{{latency_ms: {value.latency_ms:g}, gb_per_s: {value.gb_per_s:g}}}"
    return f"{value:g}"
