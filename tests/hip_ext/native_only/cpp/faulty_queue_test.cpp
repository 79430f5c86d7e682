// transfer_all over a queue that misbehaves on purpose: short, interrupted, failing and reordered completions. Exits non-zero with
// the line of the first thing that is wrong.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "core/transfer.hpp"

using namespace loadback::core;

#define CHECK(what) \
  if (!(what)) std::fprintf(stderr, "line %d: %s\n", __LINE__, #what), std::exit(1)

namespace {

struct Asked {
  Direction direction;
  Transfer transfer;
  std::uint64_t tag;
};

// Serves `file`; `result_of` says what becomes of each request: bytes, or -errno.
class FaultyQueue final : public IoQueue {
 public:
  FaultyQueue(std::vector<std::byte>& file, unsigned depth, std::function<std::int64_t(const Asked&)> result_of)
      : file_(file), depth_(depth), result_of_(std::move(result_of)) {}

  unsigned depth() const override { return depth_; }

  void start(Direction direction, const Transfer& transfer, std::uint64_t tag) override {
    under_way.push_back({direction, transfer, tag});
    ++started;
    CHECK(under_way.size() <= depth_);
  }

  std::span<const Completion> reap() override {
    CHECK(!under_way.empty());
    const std::size_t index = random_() % under_way.size();
    const Asked asked = under_way[index];
    under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(index));
    const std::int64_t result = result_of_(asked);
    if (result > 0) {
      std::byte* const place = file_.data() + asked.transfer.offset;
      const auto bytes = static_cast<std::size_t>(result);
      asked.direction == Direction::read ? std::memcpy(asked.transfer.memory, place, bytes)
                                         : std::memcpy(place, asked.transfer.memory, bytes);
    }
    completion_ = {asked.tag, result};
    return {&completion_, 1};
  }

  std::vector<Asked> under_way;
  std::size_t started = 0;

 private:
  std::vector<std::byte>& file_;
  unsigned depth_;
  std::function<std::int64_t(const Asked&)> result_of_;
  std::mt19937 random_{5};
  Completion completion_{};
};

constexpr std::size_t kPage = 8192;

std::vector<std::byte> content(std::size_t bytes) {
  std::mt19937 random(9);
  std::vector<std::byte> made(bytes);
  for (auto& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

std::vector<Transfer> pages_into(std::vector<std::byte>& memory, std::size_t stride) {
  std::vector<Transfer> transfers;
  for (std::size_t page = 0; page < memory.size() / kPage; ++page)
    transfers.push_back({3, page * stride, memory.data() + page * kPage, kPage});
  return transfers;
}

void short_reads_are_continued() {
  auto file = content(64 * kPage);
  std::vector<std::byte> memory(64 * kPage);
  FaultyQueue queue(file, 4, [](const Asked& asked) { return std::min<std::int64_t>(512, static_cast<std::int64_t>(asked.transfer.bytes)); });
  for (const Outcome& outcome : transfer_all(queue, Direction::read, pages_into(memory, kPage), 4 * kPage))
    CHECK(outcome.done == kPage && !outcome.error);
  CHECK(memory == file && queue.under_way.empty());
}

void interruptions_are_tried_again() {
  auto file = content(16 * kPage);
  std::vector<std::byte> memory(16 * kPage);
  int calls = 0;
  FaultyQueue queue(file, 3, [&](const Asked& asked) -> std::int64_t {
    ++calls;
    return calls % 3 == 0 ? -EINTR : calls % 3 == 1 ? -EAGAIN : static_cast<std::int64_t>(asked.transfer.bytes);
  });
  for (const Outcome& outcome : transfer_all(queue, Direction::read, pages_into(memory, kPage), kPage))
    CHECK(outcome.done == kPage && !outcome.error);
  CHECK(memory == file);
}

void endless_interruptions_are_an_error() {
  auto file = content(kPage);
  std::vector<std::byte> memory(kPage);
  FaultyQueue queue(file, 1, [](const Asked&) -> std::int64_t { return -EAGAIN; });
  const auto outcomes = transfer_all(queue, Direction::read, pages_into(memory, kPage));
  CHECK(outcomes[0].done == 0 && outcomes[0].error == EAGAIN && queue.started < 100);
}

void an_error_hits_its_own_pages_alone() {
  auto file = content(64 * kPage);
  std::vector<std::byte> memory(32 * kPage);
  FaultyQueue queue(file, 8, [](const Asked& asked) -> std::int64_t {
    return asked.transfer.offset == 5 * 2 * kPage ? -EIO : static_cast<std::int64_t>(asked.transfer.bytes);
  });
  const auto outcomes = transfer_all(queue, Direction::read, pages_into(memory, 2 * kPage));  // no neighbours
  for (std::size_t page = 0; page < 32; ++page) {
    CHECK(outcomes[page].error == (page == 5 ? EIO : 0) && outcomes[page].done == (page == 5 ? 0 : kPage));
    if (page != 5) CHECK(!std::memcmp(memory.data() + page * kPage, file.data() + page * 2 * kPage, kPage));
  }
  CHECK(queue.under_way.empty());
}

void an_error_within_neighbours_keeps_what_came_before() {
  auto file = content(8 * kPage);
  std::vector<std::byte> memory(8 * kPage);
  FaultyQueue queue(file, 8, [](const Asked& asked) -> std::int64_t { return asked.transfer.offset ? -EIO : 2 * kPage + 512; });
  const auto outcomes = transfer_all(queue, Direction::read, pages_into(memory, kPage));
  for (std::size_t page = 0; page < 8; ++page) {
    CHECK(outcomes[page].done == (page < 2 ? kPage : page == 2 ? 512 : 0));
    CHECK(outcomes[page].error == (page < 2 ? 0 : EIO));
  }
}

void neighbours_go_together_up_to_the_limit() {
  auto file = content(10 * kPage);
  std::vector<std::byte> memory(10 * kPage);
  FaultyQueue queue(file, 8, [](const Asked& asked) { return static_cast<std::int64_t>(asked.transfer.bytes); });
  transfer_all(queue, Direction::read, pages_into(memory, kPage), 4 * kPage);
  CHECK(queue.started == 3);
}

void short_writes_are_continued_and_stuck_ones_fail() {
  std::vector<std::byte> file(4 * kPage), memory = content(4 * kPage);
  FaultyQueue queue(file, 2, [](const Asked& asked) { return std::min<std::int64_t>(1000, static_cast<std::int64_t>(asked.transfer.bytes)); });
  for (const Outcome& outcome : transfer_all(queue, Direction::write, pages_into(memory, kPage)))
    CHECK(outcome.done == kPage && !outcome.error);
  CHECK(file == memory);
  FaultyQueue stuck(file, 2, [](const Asked&) -> std::int64_t { return 0; });
  CHECK(transfer_all(stuck, Direction::write, pages_into(memory, kPage))[0].error == EIO);
}

}  // namespace

int main() {
  short_reads_are_continued();
  interruptions_are_tried_again();
  endless_interruptions_are_an_error();
  an_error_hits_its_own_pages_alone();
  an_error_within_neighbours_keeps_what_came_before();
  neighbours_go_together_up_to_the_limit();
  short_writes_are_continued_and_stuck_ones_fail();
}
