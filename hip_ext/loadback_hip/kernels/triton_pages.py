"""The page kernels in Triton, for engines that have it: the same bytes as the code objects, and runnable in its interpreter."""

import triton
import triton.language as tl


@triton.jit
def gather_pages(packed, layers, pages, page_words, layer_count, BLOCK: tl.constexpr):
    """Layer-first to page-first, in words of 32 bits. `layers`: base addresses (int64), `pages`: numbers (int64), `page_words`:
    of one page in one layer, which is also the stride. Grid: (pages, layers)."""
    page, layer = tl.program_id(0), tl.program_id(1)
    source = tl.load(layers + layer).to(tl.pointer_type(tl.int32)) + tl.load(pages + page) * page_words
    target = packed + (page.to(tl.int64) * layer_count + layer) * page_words
    for start in range(0, page_words, BLOCK):
        words = start + tl.arange(0, BLOCK)
        mask = words < page_words
        tl.store(target + words, tl.load(source + words, mask=mask), mask=mask, cache_modifier=".cs")


@triton.jit
def scatter_pages(packed, layers, pages, page_words, layer_count, BLOCK: tl.constexpr):
    """Page-first to layer-first; otherwise as `gather_pages`."""
    page, layer = tl.program_id(0), tl.program_id(1)
    target = tl.load(layers + layer).to(tl.pointer_type(tl.int32)) + tl.load(pages + page) * page_words
    source = packed + (page.to(tl.int64) * layer_count + layer) * page_words
    for start in range(0, page_words, BLOCK):
        words = start + tl.arange(0, BLOCK)
        mask = words < page_words
        tl.store(target + words, tl.load(source + words, mask=mask), mask=mask, cache_modifier=".cs")
