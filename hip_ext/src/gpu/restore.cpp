#include "gpu/restore.hpp"

#include <algorithm>
#include <utility>

namespace loadback::gpu {
namespace {

constexpr double kLongestS = 1e6;

Clock::time_point after(double timeout_s) {
  const std::chrono::duration<double> wait(std::clamp(timeout_s, 0.0, kLongestS));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

}  // namespace

Board::~Board() {
  for (void* const event : spare_events) library->calls.hipEventDestroy(event);
}

int Board::take_event(void*& event) {
  if (spare_events.empty()) return library->calls.hipEventCreateWithFlags(&event, abi::kEventDisableTiming);
  event = spare_events.back();
  spare_events.pop_back();
  return abi::kSuccess;
}

Restore::Restore(std::shared_ptr<Board> board, std::vector<Chunk> chunks, std::size_t groups, Way way, Deadline deadline)
    : board_(std::move(board)), chunks_(std::move(chunks)), way_(way), deadline_(deadline), events_(groups), done_(groups) {
  progress_.groups = groups;
  for (const Chunk& chunk : chunks_) progress_.bytes += chunk.bytes;
}

Restore::~Restore() {
  const std::lock_guard lock(board_->mutex);
  for (void* const event : events_)
    if (event) board_->give_event(event);
}

Progress Restore::progress() const {
  const std::lock_guard lock(board_->mutex);
  return progress_;
}

bool Restore::group_done(std::size_t group) const {
  const std::lock_guard lock(board_->mutex);
  return done_.at(group);
}

Status Restore::wait(std::size_t groups, double timeout_s) const {
  std::unique_lock lock(board_->mutex);
  const bool all = groups >= done_.size();
  board_->moved.wait_until(lock, after(timeout_s),
                           [&] { return progress_.status != Status::pending || (!all && leading_done(groups)); });
  return progress_.status == Status::pending && !all && leading_done(groups) ? Status::ok : progress_.status;
}

void Restore::hold_stream(void* stream, std::size_t group, double timeout_s) const {
  void* event = nullptr;
  {
    std::unique_lock lock(board_->mutex);
    event = events_.at(group);
    board_->moved.wait_until(lock, after(timeout_s), [&] { return ending() || events_[group]; });
    if (done_[group]) return;
    if (ending()) throw HipError(ending_, progress_.code, "the group will not come: " + progress_.detail);
    event = events_[group];
  }
  if (!event) throw HipError(Status::pending, 0, "the group was not submitted in time");
  const int code = board_->library->calls.hipStreamWaitEvent(stream, event, 0);
  if (code) throw HipError(Status::copy_failed, code, board_->library->explain("hipStreamWaitEvent", code));
}

void Restore::cancel() {
  const std::lock_guard lock(board_->mutex);
  end(Status::cancelled, 0, "cancelled");
  board_->work.notify_all();
}

void Restore::end(Status status, int code, std::string detail) {
  if (ending()) return;
  ending_ = status;
  progress_.code = code;
  progress_.detail = std::move(detail);
  finish_if_idle();
}

void Restore::settle(const Chunk& chunk, int code, const std::string& detail) {
  --under_way_;
  if (code) {
    end(Status::copy_failed, code, detail);
  } else if (ending_ == Status::pending || ending_ == Status::cancelled) {
    progress_.bytes_done += chunk.bytes;
    if (chunk.ends_group) {
      done_[chunk.group] = true;
      ++progress_.groups_done;
    }
  }
  finish_if_idle();
}

void Restore::finish_if_idle() {
  if (!under_way_ && progress_.status == Status::pending) {
    if (ending_ != Status::pending)
      progress_.status = ending_;
    else if (next_chunk_ == chunks_.size())
      progress_.status = ending_ = Status::ok;
  }
  board_->moved.notify_all();
}

bool Restore::leading_done(std::size_t groups) const {
  return std::all_of(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(groups), [](bool done) { return done; });
}

}  // namespace loadback::gpu
