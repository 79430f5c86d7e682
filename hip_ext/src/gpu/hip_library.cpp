#include "gpu/hip_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace loadback::gpu {
namespace {

constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};

std::string own_maps() {
  std::ifstream file("/proc/self/maps");
  return {std::istreambuf_iterator<char>(file), {}};
}

void* open_any(std::string& path) {
  if (!path.empty()) return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  path = loaded_runtime(own_maps());
  if (!path.empty()) return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  for (const char* name : kNames) {
    path = name;
    if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  return nullptr;
}

}  // namespace

std::string_view status_name(Status status) {
  constexpr std::string_view kStatusNames[] = {"ok",          "no_runtime", "missing_call", "no_device", "not_pinned", "register_failed",
                                               "copy_failed", "cancelled",  "pending",      "busy",      "closed"};
  return kStatusNames[static_cast<std::size_t>(status)];
}

std::string loaded_runtime(std::string_view maps) {
  const auto found = maps.find("/libamdhip64.so");
  if (found == std::string_view::npos) return "";
  const auto line = maps.rfind('\n', found) + 1;  // npos + 1 is 0
  const auto start = maps.find('/', line);
  return std::string(maps.substr(start, maps.find('\n', found) - start));
}

bool sdma_disabled() {
  const char* const value = std::getenv("HSA_ENABLE_SDMA");
  return value && std::string_view(value) == "0";
}

std::shared_ptr<const HipLibrary> HipLibrary::open(const std::string& path) {
  std::string tried = path;
  void* const handle = open_any(tried);
  if (!handle) {
    const char* const why = dlerror();
    throw HipError(Status::no_runtime, 0, std::string("no HIP runtime: ") + (why ? why : tried.c_str()));
  }
  std::shared_ptr<HipLibrary> library(new HipLibrary(handle));
  library->path = tried;
  library->bind();
  const int failed = library->calls.hipGetDeviceCount(&library->devices);
  if (failed || !library->devices)
    throw HipError(Status::no_device, failed ? failed : abi::kNoDevice, library->explain("no GPU", failed ? failed : abi::kNoDevice));
  library->calls.hipRuntimeGetVersion(&library->version);
  return library;
}

void HipLibrary::bind() {
#define LOADBACK_BIND(name, result, parameters) calls.name = reinterpret_cast<result(*) parameters>(dlsym(handle_, #name));
#define LOADBACK_NEED(name, result, parameters) \
  if (!calls.name) throw HipError(Status::missing_call, 0, path + " has no " #name ": it is too old");
  LOADBACK_HIP_CALLS(LOADBACK_BIND)
  LOADBACK_HIP_BATCH(LOADBACK_BIND)
  LOADBACK_HIP_CALLS(LOADBACK_NEED)
#undef LOADBACK_NEED
#undef LOADBACK_BIND
}

std::string HipLibrary::explain(const char* what, int code) const {
  const char* const words = calls.hipGetErrorString(code);
  calls.hipGetLastError();
  return std::string(what) + ": " + (words ? words : "unknown") + " (" + std::to_string(code) + ")";
}

// HIP has threads of its own that outlive its handle: it is not unloaded.
HipLibrary::~HipLibrary() = default;

}  // namespace loadback::gpu
