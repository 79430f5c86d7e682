// What one lane does of moving one page of one layer: 16 bytes at a time, past the caches. Free of any launch's coordinates, so that
// the same lines are compiled for a GPU and, in the tests, run lane by lane on the CPU. Header-free: no ROCm is needed.
#pragma once

#ifndef LOADBACK_LANE
#define LOADBACK_LANE static inline
#endif

typedef unsigned loadback_vector __attribute__((vector_size(16)));
typedef unsigned long loadback_size;

// Pages of all layers: page-first in `packed` (page i, then layer, then bytes), layer-first in `layers` (one base address a layer).
// `pages[i]` is the place of page i in every layer. `page_stride` is from page to page there; both sizes are in bytes.
struct loadback_pages {
  char* packed;
  char* const* layers;
  const long* pages;
  loadback_size page_stride;
  loadback_size bytes;
  unsigned layer_count;
};

// Memory that is known not to be a work-group's own, which saves the GPU a look at every address.
#ifndef LOADBACK_GLOBAL
#define LOADBACK_GLOBAL
#endif

LOADBACK_LANE void loadback_store(loadback_vector value, LOADBACK_GLOBAL loadback_vector* to) {
#if defined(__clang__)
  __builtin_nontemporal_store(value, to);
#else
  *to = value;
#endif
}

LOADBACK_LANE void loadback_copy_lane(char* target, const char* source, loadback_size bytes, unsigned lane, unsigned lanes) {
  LOADBACK_GLOBAL char* const to = (LOADBACK_GLOBAL char*)target;
  const LOADBACK_GLOBAL char* const from = (const LOADBACK_GLOBAL char*)source;
  const bool aligned = !(((loadback_size)target | (loadback_size)source) % sizeof(loadback_vector));
  const loadback_size vectors = aligned ? bytes / sizeof(loadback_vector) : 0;
  const LOADBACK_GLOBAL loadback_vector* const vectors_from = (const LOADBACK_GLOBAL loadback_vector*)from;
  LOADBACK_GLOBAL loadback_vector* const vectors_to = (LOADBACK_GLOBAL loadback_vector*)to;
  loadback_size index = lane;
  // Four loads under way before the first store.
  for (; index + 3 * (loadback_size)lanes < vectors; index += 4 * (loadback_size)lanes) {
    const loadback_vector a = vectors_from[index], b = vectors_from[index + lanes];
    const loadback_vector c = vectors_from[index + 2 * (loadback_size)lanes], d = vectors_from[index + 3 * (loadback_size)lanes];
    loadback_store(a, vectors_to + index);
    loadback_store(b, vectors_to + index + lanes);
    loadback_store(c, vectors_to + index + 2 * (loadback_size)lanes);
    loadback_store(d, vectors_to + index + 3 * (loadback_size)lanes);
  }
  for (; index < vectors; index += lanes) loadback_store(vectors_from[index], vectors_to + index);
  for (index = vectors * sizeof(loadback_vector) + lane; index < bytes; index += lanes) to[index] = from[index];
}

LOADBACK_LANE char* loadback_packed(const loadback_pages& work, unsigned page, unsigned layer) {
  return work.packed + ((loadback_size)page * work.layer_count + layer) * work.bytes;
}

LOADBACK_LANE char* loadback_layered(const loadback_pages& work, unsigned page, unsigned layer) {
  return work.layers[layer] + (loadback_size)work.pages[page] * work.page_stride;
}

// Layer-first to page-first.
LOADBACK_LANE void loadback_gather_lane(const loadback_pages& work, unsigned page, unsigned layer, unsigned lane, unsigned lanes) {
  loadback_copy_lane(loadback_packed(work, page, layer), loadback_layered(work, page, layer), work.bytes, lane, lanes);
}

// Page-first to layer-first.
LOADBACK_LANE void loadback_scatter_lane(const loadback_pages& work, unsigned page, unsigned layer, unsigned lane, unsigned lanes) {
  loadback_copy_lane(loadback_layered(work, page, layer), loadback_packed(work, page, layer), work.bytes, lane, lanes);
}
