#include "core/worker_pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace loadback::core {
namespace {

constexpr unsigned kMaxThreads = 256;
constexpr int kSpins = 2000;  // some microseconds: about what a sleep and a wake-up cost
constexpr auto kStayAwake = std::chrono::microseconds(20);  // of a helper after a batch: the next one often follows at once

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void check(unsigned threads, const std::vector<int>& cpus) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads must be 1 to 256");
  for (const int cpu : cpus)
    if (cpu < 0 || cpu >= CPU_SETSIZE) throw std::invalid_argument("no such CPU: " + std::to_string(cpu));
}

// Best effort: a CPU that this process may not use leaves the thread where it was.
void pin(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

// Outlives its caller in the hands of helpers that come late; those find no job left and touch nothing else.
struct WorkerPool::Batch {
  Batch(std::size_t count, std::function<void(std::size_t)> call) : jobs(count), work(std::move(call)) {}

  void drain() {
    std::size_t finished = 0;
    for (std::size_t job; (job = next.fetch_add(1, std::memory_order_relaxed)) < jobs; ++finished) work(job);
    if (finished && done.fetch_add(finished, std::memory_order_acq_rel) + finished == jobs) {
      const std::lock_guard lock(mutex);
      all_done.notify_all();
    }
  }

  bool exhausted() const { return next.load(std::memory_order_relaxed) >= jobs; }

  void wait() {
    for (int spin = 0; spin < kSpins; ++spin, relax()) {
      if (done.load(std::memory_order_acquire) == jobs) return;
    }
    std::unique_lock lock(mutex);
    all_done.wait(lock, [this] { return done.load(std::memory_order_acquire) == jobs; });
  }

  const std::size_t jobs;
  const std::function<void(std::size_t)> work;
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};
  std::mutex mutex;
  std::condition_variable all_done;
};

WorkerPool::WorkerPool(unsigned threads, const std::vector<int>& cpus) {
  check(threads, cpus);
  try {
    for (unsigned index = 1; index < threads; ++index) {
      helpers_.emplace_back([this] { help(); });
      if (!cpus.empty()) pin(helpers_.back(), cpus[index % cpus.size()]);
    }
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void WorkerPool::run(std::size_t jobs, std::function<void(std::size_t)> work) {
  if (jobs < 2 || helpers_.empty()) {
    for (std::size_t job = 0; job < jobs; ++job) work(job);
    return;
  }
  const auto batch = std::make_shared<Batch>(jobs, std::move(work));
  {
    const std::lock_guard lock(mutex_);
    batches_.push_back(batch);
    queued_.store(batches_.size(), std::memory_order_release);
  }
  for (std::size_t index = std::min(helpers_.size(), jobs - 1); index; --index) wake_.notify_one();
  batch->drain();
  forget(batch);
  batch->wait();
}

void WorkerPool::help() {
  while (true) {
    std::shared_ptr<Batch> batch;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !batches_.empty(); });
      if (batches_.empty()) return;
      batch = batches_.front();
      if (batch->exhausted()) {
        batches_.pop_front();
        queued_.store(batches_.size(), std::memory_order_release);
        continue;
      }
    }
    batch->drain();
    forget(batch);
    const auto sleep_at = std::chrono::steady_clock::now() + kStayAwake;
    while (!queued_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < sleep_at) relax();
  }
}

void WorkerPool::forget(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(batches_.begin(), batches_.end(), batch);
  if (found != batches_.end()) batches_.erase(found);
  queued_.store(batches_.size(), std::memory_order_release);
}

}  // namespace loadback::core
