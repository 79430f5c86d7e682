"""Page copies at the memory's limit, SSD reads at the device's, restores on the copy engines: `_native` is the native part."""

from loadback_hip._native import (
    Backing,
    BufferReport,
    FileTransfers,
    HostBuffer,
    PageCopier,
    Prefault,
    isas,
    numa_nodes,
    parse_cpu_list,
    receive_descriptor,
    send_descriptor,
)

__all__ = [
    "Backing",
    "BufferReport",
    "FileTransfers",
    "HostBuffer",
    "PageCopier",
    "Prefault",
    "isas",
    "numa_nodes",
    "parse_cpu_list",
    "receive_descriptor",
    "send_descriptor",
]
