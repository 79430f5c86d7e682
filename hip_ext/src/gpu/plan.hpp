// What to copy, put in order: pages of layers become copies, neighbours become one, large ones are cut, and the whole becomes chunks
// that are submitted one at a time. And how much may be under way. Pure: nothing here calls HIP or knows the time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace loadback::gpu {

struct DeviceCopy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

using Group = std::vector<DeviceCopy>;  // a layer group: what may be used as soon as it is there

inline constexpr std::size_t kMaxBatch = 8192;  // a ROCm 7.15 image faulted beyond

struct PlanLimits {
  std::size_t chunk_bytes = 4 << 20;
  std::size_t batch_max = kMaxBatch;
};

// Submitted together, with one event behind it.
struct Chunk {
  std::size_t group;
  bool ends_group;
  std::size_t bytes;
  std::vector<DeviceCopy> copies;
};

// Groups in order; one without copies still becomes a chunk, so that its event comes. Only neighbours in the given order join.
std::vector<Chunk> plan_chunks(std::span<const Group> groups, const PlanLimits& limits);

// Host pages that hold all layers of a few tokens, device pages layer by layer. Strides and sizes in bytes.
struct PageLayout {
  std::byte* host;                   // of page 0, layer 0
  std::size_t host_pages;            // how many there are
  std::size_t host_page_stride;      // page to page
  std::size_t host_layer_stride;     // layer to layer within a page
  std::vector<std::byte*> layers;    // device: page 0 of each layer
  std::size_t device_pages;          // how many each layer has
  std::size_t device_page_stride;    // page to page
  std::size_t bytes;                 // of one page in one layer
  std::size_t layers_per_group;
};

enum class Way { load, store };  // host to device, device to host

// Page i of the host to or from page i of the device. Throws std::out_of_range and std::invalid_argument.
std::vector<Group> page_groups(const PageLayout& layout, Way way, std::span<const std::int64_t> host_pages,
                               std::span<const std::int64_t> device_pages);

struct PaceLimits {
  std::size_t window_bytes;  // under way at most
  std::size_t gentle_bytes;  // while there is time
  double slack = 2.0;        // in a hurry once less than this many times the needed time is left
};

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// Without a deadline what is wanted is wanted now.
std::size_t window_for(std::size_t left_bytes, double left_us, double bytes_per_us, const PaceLimits& limits);

}  // namespace loadback::gpu
