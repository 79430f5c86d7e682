// Numbers by the first 8 bytes of 32-byte digests: what an agent's catalogue of pages looks things up in, a batch a call.
//
// Open addressing with linear probing at most half full; what leaves makes its neighbours move up, so that nothing of it stays.
// Batches are probed ahead: a look-up is one cache miss, and several of them are under way. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadback::core {

inline constexpr std::size_t kPageDigestBytes = 32;

class IdTable {
 public:
  using Digests = std::span<const std::byte>;  // whole digests, joined

  IdTable();

  std::size_t size() const { return used_; }
  std::int64_t get(std::uint64_t id) const;  // 0 where it is not there
  void put(std::uint64_t id, std::int64_t number);
  bool drop(std::uint64_t id);

  // Whether the ids are all different, and none of them is there.
  bool fresh(Digests digests) const;
  void get_all(Digests digests, std::int64_t* numbers) const;
  // The i-th gets first + i * step.
  void put_all(Digests digests, std::int64_t first, std::int64_t step);
  void drop_all(Digests digests);

 private:
  struct Slot {
    std::uint64_t id;
    std::int64_t number;  // 0: empty
  };

  std::size_t home(std::uint64_t id) const;
  std::size_t find(std::uint64_t id) const;  // its slot, or the empty one where it would be
  void empty(std::size_t slot);
  void grow();

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

}  // namespace loadback::core
