#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "core/io_queue.hpp"

namespace loadback::core {
namespace {

constexpr unsigned kMaxThreads = 128;

struct Asked {
  Direction direction;
  Transfer transfer;
  std::uint64_t tag;
};

std::int64_t perform(const Asked& asked) {
  const auto& [fd, offset, memory, bytes] = asked.transfer;
  const auto at = static_cast<off_t>(offset);
  const ssize_t result = asked.direction == Direction::read ? pread(fd, memory, bytes, at) : pwrite(fd, memory, bytes, at);
  return result < 0 ? -errno : result;
}

class IoThreads final : public IoQueue {
 public:
  IoThreads(unsigned depth, unsigned threads) : depth_(depth) {
    try {
      for (unsigned index = 0; index < threads; ++index) threads_.emplace_back([this] { serve(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~IoThreads() override { stop(); }

  unsigned depth() const override { return depth_; }

  void start(Direction direction, const Transfer& transfer, std::uint64_t tag) override {
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back({direction, transfer, tag});
    }
    asked_some_.notify_one();
  }

  std::span<const Completion> reap() override {
    std::unique_lock lock(mutex_);
    completed_some_.wait(lock, [this] { return !completed_.empty(); });
    reaped_.swap(completed_);
    completed_.clear();
    return reaped_;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    asked_some_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      asked_some_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
      if (asked_.empty()) return;
      const Asked asked = asked_.front();
      asked_.pop_front();
      lock.unlock();
      const std::int64_t result = perform(asked);
      lock.lock();
      completed_.push_back({asked.tag, result});
      completed_some_.notify_one();
    }
  }

  unsigned depth_;
  std::mutex mutex_;
  std::condition_variable asked_some_;
  std::condition_variable completed_some_;
  std::deque<Asked> asked_;
  std::vector<Completion> completed_;
  std::vector<Completion> reaped_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> open_threads(unsigned depth, unsigned threads) {
  if (depth < 1 || depth > kMaxDepth) throw std::invalid_argument("depth must be 1 to 1024");
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads must be 1 to 128");
  return std::make_unique<IoThreads>(depth, threads);
}

}  // namespace loadback::core
