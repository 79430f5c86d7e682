// Batches of page copies: gathered into, or scattered from, one run of bytes; or from anywhere to anywhere. Everything is checked
// before the first byte moves. Knows nothing of what pages hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/hashed_copy.hpp"
#include "core/move.hpp"
#include "core/stream_copy.hpp"
#include "core/worker_pool.hpp"

namespace loadback::core {

struct Region {
  std::byte* base;
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
  // The same of pages that are made of `pieces_a_page` pieces each. Writes kDigestBytes a page, the XXH3-128 of what was copied.
  // Also refuses a page below kMinHashedBytes, and pieces that are no whole number of pages. `to_small`: the targets are likely to
  // lie on small memory pages.
  void move_hashed(std::span<const Move> pieces, std::size_t pieces_a_page, std::byte* digests, bool to_small = false);

  // One run of bytes straight through: what the other ways are measured against.
  void flat(Region to, Region from);

  Isa isa() const { return stream_.isa; }
  unsigned threads() const { return pool_.threads(); }

 private:
  const StreamCopy& stream_;
  const HashedCopy& hashed_;
  WorkerPool pool_;
};

}  // namespace loadback::core
