"""Page kernels for what the copy engines are not used for: code objects as the build made them, and a Triton twin.

A launch has a grid of (pages, layers), a block of 256 lanes, and one argument by value, packed as KERNEL_ARGUMENT says: the
address of the packed pages, of the layers' base addresses, of the page numbers (int64), the stride from page to page and the
size of a page in one layer in bytes, and the number of layers.
"""

from importlib.resources import files
from struct import Struct

ARCHES = ("gfx942", "gfx950")
GATHER = "loadback_gather_pages"  # layer-first to page-first
SCATTER = "loadback_scatter_pages"  # page-first to layer-first
BLOCK_LANES = 256
KERNEL_ARGUMENT = Struct("=QQQQQI4x")


class NoCodeObject(Exception):
    """This build has none for that GPU. The message says how to get one."""


def code_object(arch: str) -> bytes:
    """What hipModuleLoadData takes. Raises NoCodeObject."""
    if arch not in ARCHES:
        raise NoCodeObject(f"no kernels for {arch}: there are {', '.join(ARCHES)}; torch's or Triton's will do")
    try:
        return files(__package__).joinpath(f"page_kernels.{arch}.co").read_bytes()
    except FileNotFoundError as error:
        raise NoCodeObject(f"this build has no {arch} kernels: install ziglang, then build loadback-hip again") from error
