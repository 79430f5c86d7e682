// Copies that pass the caches by (non-temporal stores), in the widths a processor may have. Knows no pages and no threads.
#pragma once

#include <cstddef>
#include <string_view>

namespace loadback::core {

// Portable is libc's memcpy. Order is of width, not of speed: on Zen 4, AVX2 is the fastest (docs/hip.md).
enum class Isa { portable, avx2, avx512 };

// Below this, stores that stay in the cache win.
inline constexpr std::size_t kMinStreamBytes = 16 << 10;
// Up to this, going through several pages in turn keeps more memory banks busy than one after the other.
inline constexpr std::size_t kMaxInterleavedBytes = 64 << 10;
inline constexpr std::size_t kMaxInterleaved = 8;

struct Span {
  std::byte* to;
  const std::byte* from;
};

struct StreamCopy {
  Isa isa;
  // `bytes` from one place to another that does not overlap it; `fence` must follow before others may look.
  void (*copy)(std::byte* to, const std::byte* from, std::size_t bytes);
  // `count` <= kMaxInterleaved spans of `bytes` each, in turn. Null where that is slower: through the caches it is, by half.
  void (*interleave)(const Span* spans, std::size_t count, std::size_t bytes);
  void (*fence)();
};

bool has_isa(Isa isa);
Isa best_isa();
// Throws std::invalid_argument where the processor has not got it.
const StreamCopy& stream_copy(Isa isa);
std::string_view isa_name(Isa isa);

}  // namespace loadback::core
