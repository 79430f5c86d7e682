#include "core/id_table.hpp"

#include <bit>
#include <cstring>
#include <utility>

namespace loadback::core {
namespace {

constexpr std::size_t kSmallest = 64;
constexpr std::size_t kAhead = 16;  // look-ups under way
constexpr std::uint64_t kMix = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: digests are even already, names of tests are not

std::uint64_t id_at(IdTable::Digests digests, std::size_t index) {
  std::uint64_t id;
  std::memcpy(&id, digests.data() + index * kPageDigestBytes, sizeof id);
  return id;
}

std::size_t place(std::uint64_t id, std::size_t slots) {
  return static_cast<std::size_t>((id * kMix) >> (64 - std::countr_zero(slots)));
}

bool all_different(IdTable::Digests digests) {
  const std::size_t count = digests.size() / kPageDigestBytes;
  std::vector<std::uint64_t> seen(std::bit_ceil(2 * count + 2));  // 0: empty
  bool zero = false;
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t id = id_at(digests, index);
    if (id == 0) {
      if (std::exchange(zero, true)) return false;
      continue;
    }
    std::size_t slot = place(id, seen.size());
    for (; seen[slot] != 0; slot = (slot + 1) & (seen.size() - 1))
      if (seen[slot] == id) return false;
    seen[slot] = id;
  }
  return true;
}

}  // namespace

IdTable::IdTable() : slots_(kSmallest) {}

std::int64_t IdTable::get(std::uint64_t id) const { return slots_[find(id)].number; }

void IdTable::put(std::uint64_t id, std::int64_t number) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  Slot& slot = slots_[find(id)];
  used_ += slot.number == 0;
  slot = {id, number};
}

bool IdTable::drop(std::uint64_t id) {
  const std::size_t slot = find(id);
  if (slots_[slot].number == 0) return false;
  empty(slot);
  return true;
}

bool IdTable::fresh(Digests digests) const {
  const std::size_t count = digests.size() / kPageDigestBytes;
  for (std::size_t index = 0; index < count; ++index) {
    if (index + kAhead < count) __builtin_prefetch(&slots_[home(id_at(digests, index + kAhead))]);
    if (get(id_at(digests, index)) != 0) return false;
  }
  return all_different(digests);
}

void IdTable::get_all(Digests digests, std::int64_t* numbers) const {
  const std::size_t count = digests.size() / kPageDigestBytes;
  for (std::size_t index = 0; index < count; ++index) {
    if (index + kAhead < count) __builtin_prefetch(&slots_[home(id_at(digests, index + kAhead))]);
    numbers[index] = get(id_at(digests, index));
  }
}

void IdTable::put_all(Digests digests, std::int64_t first, std::int64_t step) {
  const std::size_t count = digests.size() / kPageDigestBytes;
  for (std::size_t index = 0; index < count; ++index) {
    if (index + kAhead < count) __builtin_prefetch(&slots_[home(id_at(digests, index + kAhead))], 1);
    put(id_at(digests, index), first + static_cast<std::int64_t>(index) * step);
  }
}

void IdTable::drop_all(Digests digests) {
  const std::size_t count = digests.size() / kPageDigestBytes;
  for (std::size_t index = 0; index < count; ++index) {
    if (index + kAhead < count) __builtin_prefetch(&slots_[home(id_at(digests, index + kAhead))], 1);
    drop(id_at(digests, index));
  }
}

std::size_t IdTable::home(std::uint64_t id) const { return place(id, slots_.size()); }

std::size_t IdTable::find(std::uint64_t id) const {
  std::size_t slot = home(id);
  while (slots_[slot].number != 0 && slots_[slot].id != id) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void IdTable::empty(std::size_t slot) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t next = (slot + 1) & mask; slots_[next].number != 0; next = (next + 1) & mask) {
    if (((next - home(slots_[next].id)) & mask) < ((next - slot) & mask)) continue;  // it lies no farther back than its home
    slots_[slot] = slots_[next];
    slot = next;
  }
  slots_[slot].number = 0;
  --used_;
}

void IdTable::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.number != 0) slots_[find(slot.id)] = slot;
}

}  // namespace loadback::core
