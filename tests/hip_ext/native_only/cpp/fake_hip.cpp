// A double of HIP's runtime for the tests: streams are queues that advance only when told to (fake_run), or a little with every
// query of an event (fake_auto). It checks what the real one cannot: that copies lie in memory that exists, and how much was queued
// at most. No thread of its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

enum : int { kSuccess = 0, kInvalidValue = 1, kNoDevice = 100, kNotReady = 600, kAlreadyRegistered = 712, kLaunchFailure = 719, kNotSupported = 801 };

struct Event {
  int recorded = 0;
  int passed = 0;
  int error = 0;
};

struct Op {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
  int kind = 0;
  Event* event = nullptr;  // a record instead of a copy
  int number = 0;          // of that record
};

struct Stream {
  int number;
  std::deque<Op> ops;
};

struct Range {
  std::uintptr_t start;
  std::size_t bytes;
};

struct Failure {
  int after;
  int code;
};

struct Fake {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Range> pinned, device;
  std::map<std::string, int> calls;
  std::map<std::string, Failure> failures;
  std::vector<std::string> log;
  std::string log_text;
  int devices = 1, last_error = 0, running_error = 0;
  bool automatic = true, batch = true;
  std::size_t queued = 0, peak = 0, destroyed = 0;
};

Fake& fake() {
  static Fake one;
  return one;
}

bool within(const std::vector<Range>& ranges, const void* data, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& range) { return at >= range.start && at + bytes <= range.start + range.bytes; });
}

// Counts the call; what it is to answer, if a failure is due.
int called(const char* name) {
  ++fake().calls[name];
  const auto found = fake().failures.find(name);
  if (found == fake().failures.end() || found->second.after-- > 0) return kSuccess;
  return fake().last_error = found->second.code;
}

void run_first(Stream& stream) {
  const Op op = stream.ops.front();
  stream.ops.pop_front();
  if (op.event) {
    op.event->passed = std::max(op.event->passed, op.number);
    op.event->error = fake().running_error;
    return;
  }
  std::memcpy(op.to, op.from, op.bytes);
  fake().queued -= op.bytes;
  fake().log.push_back("s" + std::to_string(stream.number) + " " + (op.kind == 1 ? "load " : "store ") + std::to_string(op.bytes));
}

bool run_one() {
  for (const auto& stream : fake().streams)
    if (!stream->ops.empty()) {
      run_first(*stream);
      return true;
    }
  return false;
}

int queue_copy(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  const void* const on_device = kind == 1 ? to : from;
  if (!within(fake().device, on_device, bytes)) return fake().last_error = kInvalidValue;
  static_cast<Stream*>(stream)->ops.push_back({to, from, bytes, kind, nullptr, 0});
  fake().queued += bytes;
  fake().peak = std::max(fake().peak, fake().queued);
  return kSuccess;
}

}  // namespace

extern "C" {

#define ENTER(name)                                   \
  const std::lock_guard lock(fake().mutex);           \
  if (const int code = called(name)) return code

const char* hipGetErrorString(int code) { return code == kLaunchFailure ? "unspecified launch failure" : "some error"; }
int hipGetLastError() {
  const std::lock_guard lock(fake().mutex);
  return std::exchange(fake().last_error, 0);
}
int hipRuntimeGetVersion(int* version) {
  ENTER("hipRuntimeGetVersion");
  *version = 70125424;
  return kSuccess;
}
int hipGetDeviceCount(int* count) {
  ENTER("hipGetDeviceCount");
  *count = fake().devices;
  return fake().devices ? kSuccess : kNoDevice;
}
int hipSetDevice(int device) {
  ENTER("hipSetDevice");
  return device < fake().devices ? kSuccess : 101;
}
int hipHostRegister(void* data, std::size_t bytes, unsigned) {
  ENTER("hipHostRegister");
  if (within(fake().pinned, data, bytes)) return fake().last_error = kAlreadyRegistered;
  fake().pinned.push_back({reinterpret_cast<std::uintptr_t>(data), bytes});
  return kSuccess;
}
int hipHostUnregister(void* data) {
  ENTER("hipHostUnregister");
  std::erase_if(fake().pinned, [&](const Range& range) { return range.start == reinterpret_cast<std::uintptr_t>(data); });
  return kSuccess;
}
int hipHostGetFlags(unsigned* flags, void* data) {
  ENTER("hipHostGetFlags");
  *flags = 0;
  return within(fake().pinned, data, 1) ? kSuccess : fake().last_error = kInvalidValue;
}
int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int kind, void* stream) {
  ENTER("hipMemcpyAsync");
  return queue_copy(to, from, bytes, kind, stream);
}
int hipMemcpyBatchAsync(void** to, void** from, std::size_t* bytes, std::size_t count, void* attributes, std::size_t*, std::size_t attribute_count,
                        std::size_t* failed, void* stream) {
  ENTER("hipMemcpyBatchAsync");
  if (!fake().batch || attributes || attribute_count) return fake().last_error = kNotSupported;
  if (count > 8192) std::abort();  // as a 7.15 image does
  for (std::size_t index = 0; index < count; ++index) {
    const int kind = within(fake().device, to[index], bytes[index]) ? 1 : 2;
    *failed = index;
    if (const int code = queue_copy(to[index], from[index], bytes[index], kind, stream)) return code;
  }
  return kSuccess;
}
int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  ENTER("hipDeviceGetStreamPriorityRange");
  *least = 1;
  *greatest = -1;
  return kSuccess;
}
int hipStreamCreateWithPriority(void** stream, unsigned, int) {
  ENTER("hipStreamCreateWithPriority");
  fake().streams.push_back(std::make_unique<Stream>(Stream{static_cast<int>(fake().streams.size()), {}}));
  *stream = fake().streams.back().get();
  return kSuccess;
}
int hipStreamDestroy(void* stream) {
  ENTER("hipStreamDestroy");
  if (!static_cast<Stream*>(stream)->ops.empty()) std::abort();  // work under way
  ++fake().destroyed;
  return kSuccess;
}
int hipStreamSynchronize(void* stream) {
  ENTER("hipStreamSynchronize");
  while (!static_cast<Stream*>(stream)->ops.empty()) run_first(*static_cast<Stream*>(stream));
  return kSuccess;
}
int hipStreamWaitEvent(void* stream, void* event, unsigned) {
  ENTER("hipStreamWaitEvent");
  const auto* const waited = static_cast<Event*>(event);
  fake().log.push_back("stream " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + " waits" + (waited->recorded ? "" : " for nothing"));
  return kSuccess;
}
int hipEventCreateWithFlags(void** event, unsigned) {
  ENTER("hipEventCreateWithFlags");
  *event = new Event;
  return kSuccess;
}
int hipEventRecord(void* event, void* stream) {
  ENTER("hipEventRecord");
  auto* const recorded = static_cast<Event*>(event);
  static_cast<Stream*>(stream)->ops.push_back({nullptr, nullptr, 0, 0, recorded, ++recorded->recorded});
  return kSuccess;
}
int hipEventQuery(void* event) {
  ENTER("hipEventQuery");
  auto* const asked = static_cast<Event*>(event);
  if (fake().automatic && asked->passed < asked->recorded) run_one();
  return asked->passed < asked->recorded ? kNotReady : asked->error;
}
int hipEventDestroy(void* event) {
  ENTER("hipEventDestroy");
  delete static_cast<Event*>(event);
  return kSuccess;
}

// For the tests.
void fake_reset() {
  const std::lock_guard lock(fake().mutex);
  fake().streams.clear();
  fake().pinned.clear();
  fake().device.clear();
  fake().calls.clear();
  fake().failures.clear();
  fake().log.clear();
  fake().devices = 1;
  fake().last_error = fake().running_error = 0;
  fake().automatic = fake().batch = true;
  fake().queued = fake().peak = fake().destroyed = 0;
}
void fake_devices(int devices) { fake().devices = devices; }
void fake_auto(int on) {
  const std::lock_guard lock(fake().mutex);
  fake().automatic = on;
}
void fake_batch(int on) {
  const std::lock_guard lock(fake().mutex);
  fake().batch = on;
}
void fake_running_error(int code) {
  const std::lock_guard lock(fake().mutex);
  fake().running_error = code;
}
void fake_fail(const char* name, int after, int code) {
  const std::lock_guard lock(fake().mutex);
  fake().failures[name] = {after, code};
}
void fake_device_memory(void* data, std::size_t bytes) {
  const std::lock_guard lock(fake().mutex);
  fake().device.push_back({reinterpret_cast<std::uintptr_t>(data), bytes});
}
void fake_pin(void* data, std::size_t bytes) {
  const std::lock_guard lock(fake().mutex);
  fake().pinned.push_back({reinterpret_cast<std::uintptr_t>(data), bytes});
}
int fake_run(int count) {
  const std::lock_guard lock(fake().mutex);
  int done = 0;
  while (done < count && run_one()) ++done;
  return done;
}
int fake_calls(const char* name) {
  const std::lock_guard lock(fake().mutex);
  return fake().calls[name];
}
std::size_t fake_peak_bytes() { return fake().peak; }
std::size_t fake_queued_bytes() {
  const std::lock_guard lock(fake().mutex);
  return fake().queued;
}
std::size_t fake_pinned_ranges() {
  const std::lock_guard lock(fake().mutex);
  return fake().pinned.size();
}
int fake_last_error() { return fake().last_error; }
const char* fake_log() {
  const std::lock_guard lock(fake().mutex);
  fake().log_text.clear();
  for (const std::string& line : fake().log) fake().log_text += line + "\n";
  return fake().log_text.c_str();
}

}  // extern "C"
