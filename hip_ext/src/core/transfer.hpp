// Many reads or writes of files at once: joined where they are neighbours, a bounded number under way, short ones continued, and
// none left under way on return. How the system is asked is an IoQueue's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace loadback::core {

enum class Direction { read, write };

struct Transfer {
  int fd;
  std::uint64_t offset;
  std::byte* memory;
  std::size_t bytes;
};

// `done` < bytes with `error` 0: the file ended.
struct Outcome {
  std::size_t done;
  int error;  // errno
};

struct Completion {
  std::uint64_t tag;
  std::int64_t result;  // bytes, or -errno
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual unsigned depth() const = 0;
  // Never more than `depth` under way. The transfer's memory must stay until its completion was reaped.
  virtual void start(Direction direction, const Transfer& transfer, std::uint64_t tag) = 0;
  // Waits for at least one of those under way.
  virtual std::span<const Completion> reap() = 0;
};

inline constexpr std::size_t kMaxJoinedBytes = 4 << 20;

// One outcome a transfer. Of neighbours that went together, an error counts against all from where it struck.
std::vector<Outcome> transfer_all(IoQueue& queue, Direction direction, std::span<const Transfer> transfers,
                                  std::size_t max_joined_bytes = kMaxJoinedBytes);

}  // namespace loadback::core
