// An IdTable beside a map, over ids that crowd: exits non-zero with the line of the first thing that is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <unordered_map>
#include <vector>

#include "core/id_table.hpp"

using namespace loadback::core;

#define CHECK(what) \
  if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), std::exit(1)

namespace {

std::vector<std::byte> digests_of(const std::vector<std::uint64_t>& ids) {
  std::vector<std::byte> joined(ids.size() * kPageDigestBytes);
  for (std::size_t index = 0; index < ids.size(); ++index)
    std::memcpy(joined.data() + index * kPageDigestBytes, &ids[index], sizeof ids[index]);
  return joined;
}

}  // namespace

int main() {
  std::mt19937_64 random(7);
  IdTable table;
  std::unordered_map<std::uint64_t, std::int64_t> model;
  for (int step = 0; step < 20'000; ++step) {
    std::vector<std::uint64_t> ids(random() % 40);
    for (std::uint64_t& id : ids) id = (random() % 2000) << (random() % 2 ? 0 : 50);
    const auto digests = digests_of(ids);
    bool fresh = true;
    for (std::size_t index = 0; index < ids.size(); ++index) {
      fresh = fresh && !model.count(ids[index]);
      for (std::size_t before = 0; before < index; ++before) fresh = fresh && ids[before] != ids[index];
    }
    CHECK(table.fresh(digests) == fresh);
    if (random() % 2) {
      table.put_all(digests, 1 + step, 1);
      for (std::size_t index = 0; index < ids.size(); ++index) model[ids[index]] = 1 + step + static_cast<std::int64_t>(index);
    } else {
      table.drop_all(digests);
      for (const std::uint64_t id : ids) model.erase(id);
    }
    CHECK(table.size() == model.size());
    if (step % 100) continue;
    for (std::uint64_t id = 0; id < 2000; ++id) {
      const auto found = model.find(id);
      CHECK(table.get(id) == (found == model.end() ? 0 : found->second));
    }
  }
}
