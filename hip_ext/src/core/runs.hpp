// Joins neighbours: items that continue one another in both places become one run. Used for reads (file and memory) and for
// copies to a device (host and device memory).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace loadback::core {

// Items [first, last) of the list, `bytes` together.
struct Run {
  std::size_t first;
  std::size_t last;
  std::size_t bytes;
};

// `follows(a, b)`: b begins where a ends. A run of several items has at most `max_bytes`.
template <class Item, class Follows>
std::vector<Run> join_runs(std::span<const Item> items, std::size_t max_bytes, Follows follows) {
  std::vector<Run> runs;
  for (std::size_t index = 0; index < items.size(); ++index) {
    const bool joins = index && follows(items[index - 1], items[index]) && runs.back().bytes + items[index].bytes <= max_bytes;
    if (joins) {
      runs.back().last = index + 1;
      runs.back().bytes += items[index].bytes;
    } else {
      runs.push_back({index, index + 1, items[index].bytes});
    }
  }
  return runs;
}

}  // namespace loadback::core
