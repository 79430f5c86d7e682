// Threads that live as long as the pool and take numbered jobs of batches. A batch is done when its jobs are, whichever threads
// did them: waiting for a helper that the system has not scheduled cost 1.4 ms where the work took 10 us.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace loadback::core {

class WorkerPool {
 public:
  // `threads` counts the caller, who works too. `cpus`, if any, are what helpers are pinned to.
  explicit WorkerPool(unsigned threads, const std::vector<int>& cpus = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Calls `work(0)` ... `work(jobs - 1)`, each once, on any thread; back when all are done. Several callers may be inside.
  // `work` must not throw.
  void run(std::size_t jobs, std::function<void(std::size_t)> work);
  unsigned threads() const { return static_cast<unsigned>(helpers_.size()) + 1; }

 private:
  struct Batch;
  void help();
  void stop();
  void forget(const std::shared_ptr<Batch>& batch);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Batch>> batches_;
  std::atomic<std::size_t> queued_{0};  // batches_.size(), to be looked at without the lock
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace loadback::core
