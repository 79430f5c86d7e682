#include "gpu/plan.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/runs.hpp"

namespace loadback::gpu {
namespace {

bool continues(const DeviceCopy& a, const DeviceCopy& b) { return a.to + a.bytes == b.to && a.from + a.bytes == b.from; }

Group joined(const Group& group) {
  Group copies;
  for (const core::Run& run : core::join_runs(std::span<const DeviceCopy>(group), SIZE_MAX, continues))
    if (run.bytes) copies.push_back({group[run.first].to, group[run.first].from, run.bytes});
  return copies;
}

void check_pages(std::span<const std::int64_t> pages, std::size_t held, const char* where) {
  for (const std::int64_t page : pages)
    if (page < 0 || static_cast<std::size_t>(page) >= held)
      throw std::out_of_range(std::string(where) + " page " + std::to_string(page) + " is not one of " + std::to_string(held));
}

void check_layout(const PageLayout& layout) {
  if (!layout.bytes || !layout.layers_per_group || layout.layers.empty())
    throw std::invalid_argument("bytes, layers and layers_per_group must be above 0");
  if (layout.host_layer_stride < layout.bytes || layout.device_page_stride < layout.bytes ||
      layout.host_page_stride < layout.host_layer_stride * (layout.layers.size() - 1) + layout.bytes)
    throw std::invalid_argument("strides are too small: pages or layers would overlap");
}

}  // namespace

std::vector<Chunk> plan_chunks(std::span<const Group> groups, const PlanLimits& limits) {
  std::vector<Chunk> chunks;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    chunks.push_back({group, false, 0, {}});
    for (DeviceCopy copy : joined(groups[group])) {
      while (copy.bytes) {
        if (chunks.back().bytes == limits.chunk_bytes || chunks.back().copies.size() == limits.batch_max)
          chunks.push_back({group, false, 0, {}});
        Chunk& chunk = chunks.back();
        const std::size_t bytes = std::min(copy.bytes, limits.chunk_bytes - chunk.bytes);
        chunk.copies.push_back({copy.to, copy.from, bytes});
        chunk.bytes += bytes;
        copy = {copy.to + bytes, copy.from + bytes, copy.bytes - bytes};
      }
    }
    chunks.back().ends_group = true;
  }
  return chunks;
}

std::vector<Group> page_groups(const PageLayout& layout, Way way, std::span<const std::int64_t> host_pages,
                               std::span<const std::int64_t> device_pages) {
  check_layout(layout);
  if (host_pages.size() != device_pages.size()) throw std::invalid_argument("host_pages and device_pages must be equally long");
  check_pages(host_pages, layout.host_pages, "host");
  check_pages(device_pages, layout.device_pages, "device");
  std::vector<Group> groups((layout.layers.size() + layout.layers_per_group - 1) / layout.layers_per_group);
  for (std::size_t layer = 0; layer < layout.layers.size(); ++layer) {
    Group& group = groups[layer / layout.layers_per_group];
    for (std::size_t index = 0; index < host_pages.size(); ++index) {
      std::byte* const host =
          layout.host + static_cast<std::size_t>(host_pages[index]) * layout.host_page_stride + layer * layout.host_layer_stride;
      std::byte* const device = layout.layers[layer] + static_cast<std::size_t>(device_pages[index]) * layout.device_page_stride;
      group.push_back(way == Way::load ? DeviceCopy{device, host, layout.bytes} : DeviceCopy{host, device, layout.bytes});
    }
  }
  return groups;
}

std::size_t window_for(std::size_t left_bytes, double left_us, double bytes_per_us, const PaceLimits& limits) {
  const double needed_us = static_cast<double>(left_bytes) / bytes_per_us;
  const bool relaxed = left_us != kNoDeadline && left_us > limits.slack * needed_us;
  return relaxed ? std::min(limits.gentle_bytes, limits.window_bytes) : limits.window_bytes;
}

}  // namespace loadback::gpu
