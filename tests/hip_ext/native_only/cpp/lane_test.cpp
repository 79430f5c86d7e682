// The kernels' body, run lane by lane on the CPU for every page and layer. Exits non-zero with the shape that went wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/page_lane.h"

namespace {

using Bytes = std::vector<char>;

Bytes noise(std::size_t bytes, std::mt19937& random) {
  Bytes made(bytes);
  for (char& byte : made) byte = static_cast<char>(random());
  return made;
}

template <class Body>
void launch(const loadback_pages& work, unsigned pages, unsigned lanes, Body body) {
  for (unsigned page = 0; page < pages; ++page)
    for (unsigned layer = 0; layer < work.layer_count; ++layer)
      for (unsigned lane = lanes; lane--;) body(work, page, layer, lane, lanes);
}

void check(std::size_t bytes, std::size_t stride, unsigned layers, unsigned lanes, std::size_t skew) {
  std::mt19937 random(static_cast<unsigned>(bytes + stride));
  constexpr unsigned kHeld = 5;
  const std::vector<long> pages{4, 0, 3};
  std::vector<Bytes> memory;
  std::vector<char*> bases;
  for (unsigned layer = 0; layer < layers; ++layer) memory.push_back(noise(kHeld * stride + skew, random));
  for (Bytes& layer : memory) bases.push_back(layer.data() + skew);
  const auto before = memory;
  Bytes packed(pages.size() * layers * bytes);
  const loadback_pages work{packed.data(), bases.data(), pages.data(), stride, bytes, layers};

  launch(work, 3, lanes, loadback_gather_lane);
  bool good = memory == before;
  for (unsigned page = 0; page < 3; ++page)
    for (unsigned layer = 0; layer < layers; ++layer)
      good &= !std::memcmp(packed.data() + (page * layers + layer) * bytes, bases[layer] + static_cast<std::size_t>(pages[page]) * stride, bytes);

  auto expected = memory;
  packed = noise(packed.size(), random);
  for (unsigned page = 0; page < 3; ++page)
    for (unsigned layer = 0; layer < layers; ++layer)
      std::memcpy(expected[layer].data() + skew + static_cast<std::size_t>(pages[page]) * stride, packed.data() + (page * layers + layer) * bytes, bytes);
  const loadback_pages back{packed.data(), bases.data(), pages.data(), stride, bytes, layers};
  launch(back, 3, lanes, loadback_scatter_lane);
  good &= memory == expected;
  if (!good) std::fprintf(stderr, "wrong: %zu bytes, stride %zu, %u layers, %u lanes, skew %zu\n", bytes, stride, layers, lanes, skew), std::exit(1);
}

}  // namespace

int main() {
  for (const std::size_t bytes : {1, 15, 16, 17, 100, 1024, 4096, 16384, 16400, 65536})
    for (const std::size_t spare : {0, 16, 3})
      for (const unsigned lanes : {1u, 64u, 256u})
        for (const std::size_t skew : {0, 1}) check(bytes, bytes + spare, 3, lanes, skew);
}
