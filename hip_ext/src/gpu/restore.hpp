// One load or store as its caller sees it: progress, waiting, cancelling. The Loadback's thread moves it on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu/hip_library.hpp"
#include "gpu/plan.hpp"

namespace loadback::gpu {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;

struct Progress {
  Status status = Status::pending;
  std::size_t groups = 0;
  std::size_t groups_done = 0;
  std::size_t bytes = 0;
  std::size_t bytes_issued = 0;
  std::size_t bytes_done = 0;
  int code = 0;  // hipError_t of what failed
  std::string detail;
};

// What a Loadback and its restores share; restores may outlive it. Events are made once and used again.
struct Board {
  explicit Board(std::shared_ptr<const HipLibrary> hip) : library(std::move(hip)) {}
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // The runtime's error, or 0. Both need the lock.
  int take_event(void*& event);
  void give_event(void* event) { spare_events.push_back(event); }

  const std::shared_ptr<const HipLibrary> library;
  std::mutex mutex;
  std::condition_variable work;   // something for the thread to do
  std::condition_variable moved;  // something for callers to see
  std::vector<void*> spare_events;
};

class Restore {
 public:
  Restore(std::shared_ptr<Board> board, std::vector<Chunk> chunks, std::size_t groups, Way way, Deadline deadline);
  ~Restore();
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

  Progress progress() const;
  // Throws std::out_of_range.
  bool group_done(std::size_t group) const;
  // Until the first `groups` of the groups are there, or it ended otherwise, or time is over (pending).
  Status wait(std::size_t groups, double timeout_s) const;
  // Makes `stream` (a hipStream_t of the caller's) wait for a group. Blocks until that group was submitted: an event that is not
  // yet recorded would hold nothing up. Throws HipError where it was not in time (pending), or never will be. A copy that fails
  // later shows in `progress`.
  void hold_stream(void* stream, std::size_t group, double timeout_s) const;
  // Submits nothing more; `cancelled` once nothing is under way any more.
  void cancel();

 private:
  friend class Loadback;
  // All of these need the lock.
  bool ending() const { return progress_.status != Status::pending || ending_ != Status::pending; }
  bool has_chunk() const { return !ending() && next_chunk_ < chunks_.size(); }
  void end(Status status, int code, std::string detail);
  void settle(const Chunk& chunk, int code, const std::string& detail);
  void finish_if_idle();
  bool leading_done(std::size_t groups) const;

  const std::shared_ptr<Board> board_;
  const std::vector<Chunk> chunks_;
  const Way way_;
  const Deadline deadline_;
  Progress progress_;
  std::size_t next_chunk_ = 0;
  std::size_t under_way_ = 0;
  Status ending_ = Status::pending;  // what it becomes once nothing is under way
  std::vector<void*> events_;        // by group; null until submitted
  std::vector<bool> done_;
};

}  // namespace loadback::gpu
