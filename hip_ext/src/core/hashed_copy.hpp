// Copies that hash what they copy in the same pass: XXH3-128 (seed 0, its own secret), stripe by stripe. Every byte that is stored
// was hashed from the same load, so that a digest that is right vouches for the copy. Knows no pages and no threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/stream_copy.hpp"

namespace loadback::core {

inline constexpr std::size_t kStripeBytes = 64;
inline constexpr std::size_t kBlockStripes = 16;  // between two scrambles
inline constexpr std::size_t kMinHashedBytes = 241;  // shorter inputs are hashed otherwise, which is not done here
inline constexpr std::size_t kDigestBytes = 16;

// The hash of whole stripes so far.
struct alignas(64) HashLanes {
  std::array<std::uint64_t, 8> lanes;
};

struct HashedCopy {
  Isa isa;
  // Copies and hashes `stripes`, of which the first is number `at` of its block. `through` the caches, or past them, which needs
  // `to` at the start of a cache line; then a fence must follow before others may look.
  void (*through)(std::byte* to, const std::byte* from, std::size_t stripes, std::size_t at, HashLanes& lanes);
  void (*past)(std::byte* to, const std::byte* from, std::size_t stripes, std::size_t at, HashLanes& lanes);
  // `past` for a target on small memory pages: each is looked up before it is reached, at the cost of a line that is read.
  void (*past_small)(std::byte* to, const std::byte* from, std::size_t stripes, std::size_t at, HashLanes& lanes);
  void (*fence)();
};

HashLanes fresh_lanes();
// After all whole stripes that more bytes follow: `last` are the input's last kStripeBytes, `bytes` >= kMinHashedBytes its length,
// `digest` kDigestBytes in xxhash's canonical order.
void finish_hash(HashLanes& lanes, const std::byte* last, std::uint64_t bytes, std::byte* digest);

// Throws std::invalid_argument where the processor has not got it. For AVX-512 that of AVX2, which memory holds up as it is.
const HashedCopy& hashed_copy(Isa isa);

}  // namespace loadback::core
