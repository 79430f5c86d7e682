// Batches of page copies: gathered into, or scattered from, one run of bytes; or from anywhere to anywhere. Everything is checked
// before the first byte moves. Knows nothing of what pages hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/stream_copy.hpp"
#include "core/worker_pool.hpp"

namespace loadback::core {

struct Region {
  std::byte* base;
  std::size_t bytes;
};

struct Move {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

class PageCopier {
 public:
  PageCopier(unsigned threads, Isa isa, const std::vector<int>& cpus = {});

  // packed[i] = pool[pages[i]] for pages of `page_bytes`. Throws std::out_of_range for a page that is not in `pool`, and
  // std::invalid_argument where `packed` is too small or overlaps `pool`.
  void gather(Region packed, Region pool, std::span<const std::int64_t> pages, std::size_t page_bytes);
  // pool[pages[i]] = packed[i]. Also refuses a page that is named twice.
  void scatter(Region pool, Region packed, std::span<const std::int64_t> pages, std::size_t page_bytes);
  // Each on its own. Throws std::invalid_argument where what is written overlaps anything else that is named.
  void move(std::span<const Move> moves);

  // One run of bytes straight through: what the other ways are measured against.
  void flat(Region to, Region from);

  Isa isa() const { return stream_.isa; }
  unsigned threads() const { return pool_.threads(); }

 private:
  const StreamCopy& stream_;
  WorkerPool pool_;
};

}  // namespace loadback::core
