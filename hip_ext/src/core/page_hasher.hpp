// Pages that are copied and hashed in one pass, one or several in turn. A page is the sum of its pieces, which may lie anywhere.
#pragma once

#include <cstddef>
#include <span>

#include "core/hashed_copy.hpp"
#include "core/move.hpp"

namespace loadback::core {

// One page on its way. The pieces must stay while it is.
class HashedPage {
 public:
  // `bytes` >= kMinHashedBytes is the sum of the pieces; `to_small`: they are copied to small memory pages.
  void begin(const HashedCopy& copy, std::span<const Move> pieces, std::size_t bytes, bool to_small);
  // Copies up to `stripes` more; false when the page needs but `finish`.
  bool step(std::size_t stripes);
  // Copies the rest, up to a stripe, and writes kDigestBytes.
  void finish(std::byte* digest);

 private:
  void one_stripe();
  void scatter(const std::byte* from, std::size_t bytes);

  const HashedCopy* copy_;
  decltype(HashedCopy::past) past_;
  std::span<const Move> pieces_;
  std::size_t bytes_;
  std::size_t stripes_left_;
  std::size_t piece_;     // where the next byte lies
  std::size_t offset_;    // in that piece
  std::size_t in_block_;  // the next stripe's number in its block
  HashLanes lanes_;
};

}  // namespace loadback::core
