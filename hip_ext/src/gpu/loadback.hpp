// Restores: pages from host memory to a GPU by the runtime's asynchronous copies of pinned memory, which its copy engines carry out
// without a compute unit; back-ups the other way. One thread makes all HIP calls but one: callers that have a stream of theirs wait.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "gpu/restore.hpp"

namespace loadback::gpu {

struct Options {
  int device = 0;
  unsigned load_streams = 1;            // layer groups take turns on them; stores have one of their own
  std::size_t window_bytes = 32 << 20;  // under way at most, each way: an engine's own copies must not queue behind a burst
  PlanLimits plan;
  bool allow_unpinned = false;  // copies that the runtime stages: slow, and counted
  bool high_priority = false;
};

struct Counters {
  std::size_t copies_asked = 0;
  std::size_t copies_issued = 0;  // after joining and cutting
  std::size_t batches = 0;
  std::size_t bytes = 0;
  std::size_t unpinned_copies = 0;
  bool batch_refused = false;
};

class Loadback {
 public:
  // Throws HipError, and std::invalid_argument.
  Loadback(std::shared_ptr<const HipLibrary> library, const Options& options);
  ~Loadback();
  Loadback(const Loadback&) = delete;
  Loadback& operator=(const Loadback&) = delete;

  // Pins memory until it is removed or this is closed. Memory that someone else has pinned is welcome too. Throws HipError
  // (register_failed, closed).
  void add_host(std::byte* data, std::size_t bytes);
  // Throws HipError (busy) while anything is to do.
  void remove_host(std::byte* data);
  // Layer groups in the order in which they are wanted. Throws HipError (closed).
  std::shared_ptr<Restore> submit(Way way, const std::vector<Group>& groups, Deadline deadline);
  Counters counters() const;
  // Cancels what is to do and waits for what is under way, ten seconds at most: what is not done then is left to the runtime.
  void close();

 private:
  struct Issued {
    std::shared_ptr<Restore> restore;
    const Chunk* chunk;
    void* event;
    int code;  // of the call that failed
    std::string detail;
  };
  struct Stream {
    void* handle = nullptr;
    std::deque<Issued> issued;
  };
  struct Lane {
    std::vector<Stream> streams;
    std::vector<std::shared_ptr<Restore>> waiting;  // by deadline; guarded
    std::size_t bytes_under_way = 0;
    double bytes_per_us = 25'000;  // a first guess: half of what PCIe 5 gives
    Clock::time_point busy_since{};
  };
  struct Host {
    std::size_t bytes;
    bool ours;
  };

  void serve();
  void run_calls(std::unique_lock<std::mutex>& lock);
  bool drained(const Deadline& give_up) const;
  void in_thread(std::function<void()> call);
  void open_streams();
  void open_lane(Way way, unsigned streams, int priority);
  bool reap(Lane& lane);
  void settle(Lane& lane, const Issued& issued, int code);
  bool issue(Lane& lane);
  // The chunk to submit next, if it may be now; counted as under way.
  const Chunk* claim(Lane& lane, std::shared_ptr<Restore>& restore);
  void submit_chunk(Lane& lane, std::shared_ptr<Restore> restore, const Chunk& chunk);
  void copy_behind_event(Issued& issued, Way way, void* stream);
  int copy_chunk(const Chunk& chunk, Way way, void* stream);
  int copy_batch(const Chunk& chunk, void* stream);
  bool pinned(const std::byte* data, std::size_t bytes) const;
  std::size_t unpinned(const Chunk& chunk, Way way) const;
  void release(bool all_done);

  const std::shared_ptr<const HipLibrary> library_;
  const Options options_;
  const std::shared_ptr<Board> board_;
  // the thread's
  std::map<Way, Lane> lanes_;
  std::map<const std::byte*, Host> hosts_;
  // guarded by the board's lock
  std::deque<std::function<void()>> calls_;
  Counters counters_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace loadback::gpu
