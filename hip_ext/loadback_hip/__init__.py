"""Page copies at the memory's limit, SSD reads at the device's, restores on the copy engines. Everything native is in `_native`."""

from loadback_hip._native import PageCopier, isas

__all__ = ["PageCopier", "isas"]
