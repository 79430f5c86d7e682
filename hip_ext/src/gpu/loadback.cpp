#include "gpu/loadback.hpp"

#include <algorithm>
#include <future>
#include <stdexcept>
#include <utility>

namespace loadback::gpu {
namespace {

constexpr auto kPoll = std::chrono::microseconds(50);  // a chunk of 4 MiB takes 80 at 51 GB/s
constexpr auto kDrain = std::chrono::seconds(10);
constexpr double kNewShare = 0.2;  // of a chunk's rate in the running average
constexpr unsigned kMaxStreams = 2;

const std::byte* host_side(const DeviceCopy& copy, Way way) { return way == Way::load ? copy.from : copy.to; }

void check(const Options& options) {
  if (options.load_streams < 1 || options.load_streams > kMaxStreams) throw std::invalid_argument("load_streams must be 1 or 2");
  if (!options.plan.chunk_bytes || options.window_bytes < options.plan.chunk_bytes)
    throw std::invalid_argument("chunk_bytes must be above 0, and window_bytes not below it");
  if (!options.plan.batch_max || options.plan.batch_max > kMaxBatch) throw std::invalid_argument("batch_max must be 1 to 8192");
}

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

}  // namespace

Loadback::Loadback(std::shared_ptr<const HipLibrary> library, const Options& options)
    : library_(std::move(library)), options_(options), board_(std::make_shared<Board>(library_)) {
  check(options);
  lanes_[Way::load];
  lanes_[Way::store];
  thread_ = std::thread([this] { serve(); });
  try {
    in_thread([this] { open_streams(); });
  } catch (...) {
    close();
    throw;
  }
}

Loadback::~Loadback() { close(); }

void Loadback::close() {
  {
    const std::lock_guard lock(board_->mutex);
    stopping_ = true;
    for (auto& [way, lane] : lanes_)
      for (const auto& restore : lane.waiting) restore->end(Status::cancelled, 0, "the loadback was closed");
  }
  board_->work.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Loadback::add_host(std::byte* data, std::size_t bytes) {
  in_thread([=, this] {
    const int code = library_->calls.hipHostRegister(data, bytes, abi::kRegisterPortable);
    if (code && code != abi::kAlreadyRegistered)
      throw HipError(Status::register_failed, code, library_->explain("hipHostRegister", code));
    hosts_[data] = {bytes, !code};
  });
}

void Loadback::remove_host(std::byte* data) {
  in_thread([=, this] {
    {
      const std::lock_guard lock(board_->mutex);
      for (const auto& [way, lane] : lanes_)
        if (!lane.waiting.empty() || lane.bytes_under_way) throw HipError(Status::busy, 0, "copies are to do: wait for them first");
    }
    const auto found = hosts_.find(data);
    if (found == hosts_.end()) throw std::invalid_argument("this memory was not added");
    if (found->second.ours) library_->calls.hipHostUnregister(data);
    hosts_.erase(found);
  });
}

std::shared_ptr<Restore> Loadback::submit(Way way, const std::vector<Group>& groups, Deadline deadline) {
  auto restore = std::make_shared<Restore>(board_, plan_chunks(groups, options_.plan), groups.size(), way, deadline);
  const std::lock_guard lock(board_->mutex);
  if (stopping_) throw HipError(Status::closed, 0, "the loadback is closed");
  for (const Group& group : groups) counters_.copies_asked += group.size();
  const auto later = [](const std::shared_ptr<Restore>& a, const std::shared_ptr<Restore>& b) {
    return a->deadline_.value_or(Clock::time_point::min()) < b->deadline_.value_or(Clock::time_point::min());
  };
  auto& waiting = lanes_.at(way).waiting;
  waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), restore, later), restore);
  if (groups.empty()) restore->finish_if_idle();
  board_->work.notify_all();
  return restore;
}

Counters Loadback::counters() const {
  const std::lock_guard lock(board_->mutex);
  return counters_;
}

void Loadback::in_thread(std::function<void()> call) {
  std::packaged_task<void()> task(std::move(call));
  auto result = task.get_future();
  {
    const std::lock_guard lock(board_->mutex);
    if (stopping_) throw HipError(Status::closed, 0, "the loadback is closed");
    calls_.emplace_back([&task] { task(); });
  }
  board_->work.notify_all();
  result.get();
}

void Loadback::serve() {
  Deadline give_up;
  std::unique_lock lock(board_->mutex);
  while (true) {
    run_calls(lock);
    lock.unlock();
    bool moved = false;
    for (auto& [way, lane] : lanes_) moved = reap(lane) | issue(lane) | moved;
    lock.lock();
    if (stopping_ && !give_up) give_up = Clock::now() + kDrain;
    if (drained(give_up)) break;
    if (moved || !calls_.empty()) continue;
    const bool idle = std::all_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
      return entry.second.waiting.empty() &&
             std::all_of(entry.second.streams.begin(), entry.second.streams.end(), [](const Stream& s) { return s.issued.empty(); });
    });
    if (idle && !stopping_)
      board_->work.wait(lock);
    else
      board_->work.wait_for(lock, kPoll);
  }
  run_calls(lock);
  lock.unlock();
  release(drained(std::nullopt));
}

void Loadback::run_calls(std::unique_lock<std::mutex>& lock) {
  while (!calls_.empty()) {
    const auto call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
    lock.lock();
  }
}

// Without a time to give up: whether nothing is under way.
bool Loadback::drained(const Deadline& give_up) const {
  if (!stopping_) return false;
  if (give_up && Clock::now() > *give_up) return true;
  for (const auto& [way, lane] : lanes_)
    for (const Stream& stream : lane.streams)
      if (!stream.issued.empty()) return false;
  return true;
}

void Loadback::open_streams() {
  int least = 0, greatest = 0;
  if (const int code = library_->calls.hipSetDevice(options_.device))
    throw HipError(Status::no_device, code, library_->explain("hipSetDevice", code));
  if (options_.high_priority) library_->calls.hipDeviceGetStreamPriorityRange(&least, &greatest);
  open_lane(Way::load, options_.load_streams, greatest);
  open_lane(Way::store, 1, 0);
}

void Loadback::open_lane(Way way, unsigned streams, int priority) {
  for (unsigned index = 0; index < streams; ++index) {
    Stream stream;
    const int code = library_->calls.hipStreamCreateWithPriority(&stream.handle, abi::kStreamNonBlocking, priority);
    if (code) throw HipError(Status::no_device, code, library_->explain("hipStreamCreateWithPriority", code));
    lanes_.at(way).streams.push_back(std::move(stream));
  }
}

bool Loadback::reap(Lane& lane) {
  bool moved = false;
  for (Stream& stream : lane.streams) {
    while (!stream.issued.empty()) {
      const Issued& first = stream.issued.front();
      const int code = first.event ? library_->calls.hipEventQuery(first.event) : first.code;
      if (code == abi::kNotReady) break;
      settle(lane, first, first.code ? first.code : code);
      stream.issued.pop_front();
      moved = true;
    }
  }
  return moved;
}

void Loadback::settle(Lane& lane, const Issued& issued, int code) {
  const auto now = Clock::now();
  const double took_us = microseconds(now - lane.busy_since);
  if (!code && issued.chunk->bytes && took_us > 0)
    lane.bytes_per_us += kNewShare * (static_cast<double>(issued.chunk->bytes) / took_us - lane.bytes_per_us);
  lane.busy_since = now;
  lane.bytes_under_way -= issued.chunk->bytes;
  const std::string detail = !code ? "" : issued.code ? issued.detail : library_->explain("a copy failed", code);
  const std::lock_guard lock(board_->mutex);
  issued.restore->settle(*issued.chunk, code, detail);
  if (issued.event && !issued.chunk->ends_group) board_->give_event(issued.event);
}

bool Loadback::issue(Lane& lane) {
  bool moved = false;
  while (true) {
    std::shared_ptr<Restore> restore;
    const Chunk* const chunk = claim(lane, restore);
    if (!chunk) return moved;
    submit_chunk(lane, std::move(restore), *chunk);
    moved = true;
  }
}

const Chunk* Loadback::claim(Lane& lane, std::shared_ptr<Restore>& restore) {
  std::vector<std::shared_ptr<Restore>> over;  // outlives the lock, which the end of a restore takes
  const std::lock_guard lock(board_->mutex);
  std::erase_if(lane.waiting, [&](auto& each) { return !each->has_chunk() && (over.push_back(std::move(each)), true); });
  if (lane.waiting.empty() || lane.streams.empty()) return nullptr;
  restore = lane.waiting.front();
  const Chunk& chunk = restore->chunks_[restore->next_chunk_];
  const auto now = Clock::now();
  const double left_us = restore->deadline_ ? microseconds(*restore->deadline_ - now) : kNoDeadline;
  const std::size_t left_bytes = restore->progress_.bytes - restore->progress_.bytes_done;
  const PaceLimits pace{options_.window_bytes, options_.plan.chunk_bytes};
  const std::size_t window = window_for(left_bytes, left_us, lane.bytes_per_us, pace);
  if (lane.bytes_under_way && lane.bytes_under_way + chunk.bytes > window) return nullptr;
  if (!lane.bytes_under_way) lane.busy_since = now;
  lane.bytes_under_way += chunk.bytes;
  ++restore->next_chunk_;
  ++restore->under_way_;
  restore->progress_.bytes_issued += chunk.bytes;
  return &chunk;
}

void Loadback::submit_chunk(Lane& lane, std::shared_ptr<Restore> restore, const Chunk& chunk) {
  Stream& stream = lane.streams[chunk.group % lane.streams.size()];
  Issued issued{restore, &chunk, nullptr, 0, ""};
  const std::size_t loose = unpinned(chunk, restore->way_);
  const bool refused = loose && !options_.allow_unpinned;
  if (!refused) copy_behind_event(issued, restore->way_, stream.handle);
  {
    const std::lock_guard lock(board_->mutex);
    if (refused) restore->end(Status::not_pinned, 0, "host memory is not pinned: add it first");
    if (issued.code) restore->end(Status::copy_failed, issued.code, issued.detail);
    if (issued.event && chunk.ends_group) restore->events_[chunk.group] = issued.event;
    counters_.unpinned_copies += refused ? 0 : loose;
    counters_.bytes += issued.code || refused ? 0 : chunk.bytes;
    board_->moved.notify_all();
  }
  stream.issued.push_back(std::move(issued));
}

// The event comes first: without one nothing is copied. It is recorded behind a refused copy too, a part of which may be under way.
void Loadback::copy_behind_event(Issued& issued, Way way, void* stream) {
  {
    const std::lock_guard lock(board_->mutex);
    issued.code = board_->take_event(issued.event);
  }
  if (issued.code) {
    issued.detail = library_->explain("hipEventCreateWithFlags", issued.code);
    return;
  }
  issued.code = copy_chunk(*issued.chunk, way, stream);
  if (issued.code) issued.detail = library_->explain("a copy was refused", issued.code);
  const int code = library_->calls.hipEventRecord(issued.event, stream);
  if (!code) return;
  if (!issued.code) issued.detail = library_->explain("hipEventRecord", issued.code = code);
  library_->calls.hipStreamSynchronize(stream);  // nothing else tells when its memory is free again
  const std::lock_guard lock(board_->mutex);
  board_->give_event(std::exchange(issued.event, nullptr));
}

int Loadback::copy_chunk(const Chunk& chunk, Way way, void* stream) {
  bool batch_refused;
  {
    const std::lock_guard lock(board_->mutex);
    batch_refused = counters_.batch_refused;
  }
  if (chunk.copies.size() > 1 && library_->has_batch() && !batch_refused) {
    const int code = copy_batch(chunk, stream);
    if (code != abi::kNotSupported) return code;
    library_->calls.hipGetLastError();
  }
  const int kind = way == Way::load ? abi::kHostToDevice : abi::kDeviceToHost;
  for (const DeviceCopy& copy : chunk.copies)
    if (const int code = library_->calls.hipMemcpyAsync(copy.to, copy.from, copy.bytes, kind, stream)) return code;
  const std::lock_guard lock(board_->mutex);
  counters_.copies_issued += chunk.copies.size();
  return abi::kSuccess;
}

int Loadback::copy_batch(const Chunk& chunk, void* stream) {
  std::vector<void*> to, from;
  std::vector<std::size_t> bytes;
  for (const DeviceCopy& copy : chunk.copies) {
    to.push_back(copy.to);
    from.push_back(const_cast<std::byte*>(copy.from));
    bytes.push_back(copy.bytes);
  }
  std::size_t failed = 0;
  const int code = library_->calls.hipMemcpyBatchAsync(to.data(), from.data(), bytes.data(), bytes.size(), nullptr, nullptr, 0, &failed, stream);
  const std::lock_guard lock(board_->mutex);
  counters_.batch_refused = code == abi::kNotSupported;
  counters_.batches += !code;
  counters_.copies_issued += code ? 0 : bytes.size();
  return code;
}

bool Loadback::pinned(const std::byte* data, std::size_t bytes) const {
  const auto next = hosts_.upper_bound(data);
  if (next != hosts_.begin()) {
    const auto& [base, host] = *std::prev(next);
    if (data + bytes <= base + host.bytes) return true;
  }
  unsigned flags;
  if (!library_->calls.hipHostGetFlags(&flags, const_cast<std::byte*>(data))) return true;  // by the engine
  library_->calls.hipGetLastError();
  return false;
}

std::size_t Loadback::unpinned(const Chunk& chunk, Way way) const {
  return static_cast<std::size_t>(std::count_if(chunk.copies.begin(), chunk.copies.end(), [&](const DeviceCopy& copy) {
    return !pinned(host_side(copy, way), copy.bytes);
  }));
}

// What did not get done in time is left alone, with all that it uses.
void Loadback::release(bool all_done) {
  if (!all_done) {
    const std::lock_guard lock(board_->mutex);
    for (auto& [way, lane] : lanes_)
      for (Stream& stream : lane.streams)
        for (Issued& issued : stream.issued) {
          issued.restore->under_way_ = 0;
          issued.restore->end(Status::copy_failed, 0, "not done ten seconds after the loadback was closed");
          issued.restore->finish_if_idle();
          static_cast<void>(new std::shared_ptr<Restore>(issued.restore));
        }
    return;
  }
  for (auto& [way, lane] : lanes_)
    for (Stream& stream : lane.streams) library_->calls.hipStreamDestroy(stream.handle);
  for (const auto& [data, host] : hosts_)
    if (host.ours) library_->calls.hipHostUnregister(const_cast<std::byte*>(data));
}

}  // namespace loadback::gpu
