#include "core/transfer.hpp"

#include <algorithm>
#include <cerrno>

#include "core/runs.hpp"

namespace loadback::core {
namespace {

constexpr std::size_t kBlockBytes = 512;  // an end that is on no block is the end of the file
constexpr int kMaxRetries = 64;

struct Progress {
  std::size_t done = 0;
  int error = 0;
  int retries = 0;
};

bool continues(const Transfer& a, const Transfer& b) {
  return a.fd == b.fd && a.offset + a.bytes == b.offset && a.memory + a.bytes == b.memory;
}

// Whether the rest must be asked for again.
bool advance(Progress& progress, std::int64_t result, std::size_t bytes, Direction direction) {
  if (result == -EINTR || result == -EAGAIN) {
    if (++progress.retries < kMaxRetries) return true;
    progress.error = static_cast<int>(-result);
    return false;
  }
  if (result < 0) {
    progress.error = static_cast<int>(-result);
    return false;
  }
  const auto got = static_cast<std::size_t>(result);
  progress.done += got;
  if (!got && direction == Direction::write && progress.done < bytes) progress.error = EIO;
  const bool ended = !got || (direction == Direction::read && got % kBlockBytes);
  return progress.done < bytes && !ended;
}

void share_out(std::span<const Transfer> transfers, const Run& run, const Progress& progress, std::vector<Outcome>& outcomes) {
  std::size_t left = progress.done;
  for (std::size_t index = run.first; index < run.last; ++index) {
    const std::size_t done = std::min(left, transfers[index].bytes);
    outcomes[index] = {done, done < transfers[index].bytes ? progress.error : 0};
    left -= done;
  }
}

}  // namespace

std::vector<Outcome> transfer_all(IoQueue& queue, Direction direction, std::span<const Transfer> transfers,
                                  std::size_t max_joined_bytes) {
  std::vector<Outcome> outcomes(transfers.size());
  const auto runs = join_runs(transfers, max_joined_bytes, continues);
  std::vector<Progress> progress(runs.size());
  const auto ask = [&](std::size_t index) {
    const Transfer& first = transfers[runs[index].first];
    const std::size_t done = progress[index].done;
    queue.start(direction, {first.fd, first.offset + done, first.memory + done, runs[index].bytes - done}, index);
  };
  std::size_t next = 0;
  unsigned under_way = 0;
  while (next < runs.size() || under_way) {
    for (; next < runs.size() && under_way < queue.depth(); ++next, ++under_way) ask(next);
    for (const Completion completion : queue.reap()) {
      const std::size_t index = completion.tag;
      if (advance(progress[index], completion.result, runs[index].bytes, direction)) {
        ask(index);
        continue;
      }
      --under_way;
      share_out(transfers, runs[index], progress[index], outcomes);
    }
  }
  return outcomes;
}

}  // namespace loadback::core
