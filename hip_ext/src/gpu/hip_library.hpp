// HIP's runtime, found at run time: the one that the engine in this process has loaded, else one by name. Says why there is none.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "gpu/hip_abi.hpp"

namespace loadback::gpu {

enum class Status {
  ok,
  no_runtime,       // no libamdhip64 is loaded or to be found
  missing_call,     // the library lacks a call that is needed
  no_device,        // a runtime without a GPU, or without that one
  not_pinned,       // host memory that is not registered
  register_failed,  // the runtime would not pin memory
  copy_failed,      // the runtime refused or failed a copy
  cancelled,
  pending,  // not done yet
  busy,     // not while copies are under way
  closed,
};

std::string_view status_name(Status status);

class HipError : public std::runtime_error {
 public:
  HipError(Status why, int hip_code, const std::string& message) : std::runtime_error(message), status(why), code(hip_code) {}
  Status status;
  int code;  // hipError_t; 0 where it is not HIP that failed
};

class HipLibrary {
 public:
  // `path`: that library alone. Throws HipError: no_runtime, missing_call, no_device.
  static std::shared_ptr<const HipLibrary> open(const std::string& path = "");
  ~HipLibrary();
  HipLibrary(const HipLibrary&) = delete;
  HipLibrary& operator=(const HipLibrary&) = delete;

  // "what: HIP's own words (code)". Clears the thread's last error, for which engines would take it to be their own.
  std::string explain(const char* what, int code) const;
  bool has_batch() const { return calls.hipMemcpyBatchAsync != nullptr; }

  abi::Calls calls;
  std::string path;
  int version = 0;
  int devices = 0;

 private:
  explicit HipLibrary(void* handle) : handle_(handle) {}
  void bind();
  void* handle_;
};

// The path of a libamdhip64 among the lines of /proc/self/maps; empty where there is none.
std::string loaded_runtime(std::string_view maps);
// HSA_ENABLE_SDMA=0 makes copies into kernels that take compute units.
bool sdma_disabled();

}  // namespace loadback::gpu
