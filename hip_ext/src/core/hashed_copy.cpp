#include "core/hashed_copy.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace loadback::core {
namespace {

// Of xxhash's specification (doc/xxhash_spec.md): the default secret, in which every stripe of a block has its own key.
alignas(64) constexpr unsigned char kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
constexpr std::size_t kKeyStep = 8;                                      // of the secret, from stripe to stripe
constexpr std::size_t kScrambleKey = sizeof(kSecret) - kStripeBytes;     // where the keys of the scramble begin
constexpr std::size_t kLastKey = sizeof(kSecret) - kStripeBytes - 7;     // of the last stripe
constexpr std::size_t kLowKey = 11;                                      // of the digest's halves
constexpr std::size_t kHighKey = sizeof(kSecret) - kStripeBytes - 11;

constexpr std::uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F, kPrime64_3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63, kPrime64_5 = 0x27D4EB2F165667C5;

std::uint64_t read64(const void* from) {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  return value;
}

void write64_big(std::byte* to, std::uint64_t value) {
  if constexpr (std::endian::native == std::endian::little) value = __builtin_bswap64(value);
  std::memcpy(to, &value, sizeof(value));
}

void accumulate(HashLanes& hash, const std::byte* stripe, const unsigned char* secret) {
  for (std::size_t lane = 0; lane < 8; ++lane) {
    const std::uint64_t data = read64(stripe + 8 * lane), keyed = data ^ read64(secret + 8 * lane);
    hash.lanes[lane ^ 1] += data;
    hash.lanes[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  }
}

void scramble(HashLanes& hash) {
  for (std::size_t lane = 0; lane < 8; ++lane) {
    std::uint64_t& value = hash.lanes[lane];
    value = (value ^ value >> 47 ^ read64(kSecret + kScrambleKey + 8 * lane)) * kPrime32_1;
  }
}

__extension__ using Wide = unsigned __int128;

std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t merged(const HashLanes& hash, const unsigned char* secret, std::uint64_t start) {
  for (std::size_t lane = 0; lane < 8; lane += 2)
    start += folded_product(hash.lanes[lane] ^ read64(secret + 8 * lane), hash.lanes[lane + 1] ^ read64(secret + 8 * lane + 8));
  start = (start ^ start >> 37) * 0x165667919E3779F9;
  return start ^ start >> 32;
}

void copy_portable(std::byte* to, const std::byte* from, std::size_t stripes, std::size_t at, HashLanes& hash) {
  std::byte stripe[kStripeBytes];
  for (; stripes; --stripes, to += kStripeBytes, from += kStripeBytes) {
    std::memcpy(stripe, from, kStripeBytes);
    asm volatile("" : : "r"(stripe) : "memory");  // no second load: another process may write there
    std::memcpy(to, stripe, kStripeBytes);
    accumulate(hash, stripe, kSecret + kKeyStep * at);
    if (++at == kBlockStripes) {
      scramble(hash);
      at = 0;
    }
  }
}

void fence_portable() {}

#if defined(__x86_64__)

constexpr std::size_t kAhead = 512;  // bytes, of what is copied
constexpr std::size_t kFarAhead = 4096;  // to small pages
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kPageAhead = 1024;  // bytes

enum class Stores { through, past, past_small };

template <bool kPast>
__attribute__((target("avx2"), always_inline)) inline __m256i half_stripe_avx2(std::byte* to, const std::byte* from,
                                                                              const unsigned char* secret, __m256i lanes) {
  __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  asm volatile("" : "+x"(data));  // no second load: another process may write there
  if constexpr (kPast)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), data);
  else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), data);
  const __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret)));
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  return _mm256_add_epi64(product, _mm256_add_epi64(lanes, _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2))));
}

__attribute__((target("avx2"), always_inline)) inline __m256i scramble_avx2(const unsigned char* secret, __m256i lanes) {
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(kPrime32_1));
  const __m256i mixed = _mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47));
  const __m256i keyed = _mm256_xor_si256(mixed, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret)));
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(keyed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(keyed, prime), _mm256_slli_epi64(high, 32));
}

// Streaming stores wait for the look-up of every small page, which nothing does ahead of them.
template <Stores kStores>
__attribute__((target("avx2"))) void copy_avx2(std::byte* to, const std::byte* from, std::size_t stripes, std::size_t at,
                                               HashLanes& hash) {
  constexpr std::size_t kSoon = kStores == Stores::past_small ? kFarAhead : kAhead;
  auto* const kept = reinterpret_cast<__m256i*>(hash.lanes.data());
  __m256i low = _mm256_load_si256(kept), high = _mm256_load_si256(kept + 1);
  if constexpr (kStores == Stores::past_small) {
    const auto soon = reinterpret_cast<std::uintptr_t>(to) + kPageAhead;
    const std::uintptr_t next = (soon + kSmallPage - 1) / kSmallPage * kSmallPage;
    if (next < soon + stripes * kStripeBytes) _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_NTA);
  }
  while (stripes) {
    const std::size_t count = std::min(stripes, kBlockStripes - at);
    const unsigned char* secret = kSecret + kKeyStep * at;
    for (std::size_t index = 0; index < count; ++index, to += kStripeBytes, from += kStripeBytes, secret += kKeyStep) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + kSoon, _MM_HINT_T0);
      low = half_stripe_avx2<kStores != Stores::through>(to, from, secret, low);
      high = half_stripe_avx2<kStores != Stores::through>(to + 32, from + 32, secret + 32, high);
    }
    stripes -= count;
    at += count;
    if (at == kBlockStripes) {
      low = scramble_avx2(kSecret + kScrambleKey, low);
      high = scramble_avx2(kSecret + kScrambleKey + 32, high);
      at = 0;
    }
  }
  _mm256_store_si256(kept, low);
  _mm256_store_si256(kept + 1, high);
}

void fence_x86() { _mm_sfence(); }

constexpr HashedCopy kAvx2{Isa::avx2, copy_avx2<Stores::through>, copy_avx2<Stores::past>, copy_avx2<Stores::past_small>,
                           fence_x86};

#endif

constexpr HashedCopy kPortable{Isa::portable, copy_portable, copy_portable, copy_portable, fence_portable};

}  // namespace

HashLanes fresh_lanes() {
  return {{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1}};
}

void finish_hash(HashLanes& hash, const std::byte* last, std::uint64_t bytes, std::byte* digest) {
  accumulate(hash, last, kSecret + kLastKey);
  write64_big(digest, merged(hash, kSecret + kHighKey, ~(bytes * kPrime64_2)));
  write64_big(digest + 8, merged(hash, kSecret + kLowKey, bytes * kPrime64_1));
}

const HashedCopy& hashed_copy(Isa isa) {
  stream_copy(isa);  // refuses what the processor has not got
#if defined(__x86_64__)
  if (isa != Isa::portable) return kAvx2;
#endif
  return kPortable;
}

}  // namespace loadback::core
