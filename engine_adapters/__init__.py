"""One engine's wire each, behind one contract (`base`)."""

from engine_adapters.adapters import adapter_for, detect

__all__ = ["adapter_for", "detect"]
