// The part of HIP's C interface that is used, so that neither a build nor an import needs ROCm. tests/hip_ext holds it against the
// headers of HIP 7.1; no call in it has changed since 5.2 as far as is known.
#pragma once

#include <cstddef>

namespace loadback::gpu::abi {

inline constexpr int kSuccess = 0;
inline constexpr int kNoDevice = 100;
inline constexpr int kNotReady = 600;
inline constexpr int kAlreadyRegistered = 712;
inline constexpr int kNotSupported = 801;

inline constexpr int kHostToDevice = 1;
inline constexpr int kDeviceToHost = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kRegisterPortable = 1;

// X(name, result, parameters): every runtime has these...
#define LOADBACK_HIP_CALLS(X)                                                                \
  X(hipGetErrorString, const char*, (int))                                                   \
  X(hipGetLastError, int, ())                                                                \
  X(hipRuntimeGetVersion, int, (int*))                                                       \
  X(hipGetDeviceCount, int, (int*))                                                          \
  X(hipSetDevice, int, (int))                                                                \
  X(hipHostRegister, int, (void*, std::size_t, unsigned))                                    \
  X(hipHostUnregister, int, (void*))                                                         \
  X(hipHostGetFlags, int, (unsigned*, void*))                                                \
  X(hipMemcpyAsync, int, (void*, const void*, std::size_t, int, void*))                      \
  X(hipDeviceGetStreamPriorityRange, int, (int*, int*))                                      \
  X(hipStreamCreateWithPriority, int, (void**, unsigned, int))                               \
  X(hipStreamDestroy, int, (void*))                                                          \
  X(hipStreamSynchronize, int, (void*))                                                      \
  X(hipStreamWaitEvent, int, (void*, void*, unsigned))                                       \
  X(hipEventCreateWithFlags, int, (void**, unsigned))                                        \
  X(hipEventRecord, int, (void*, void*))                                                     \
  X(hipEventQuery, int, (void*))                                                             \
  X(hipEventDestroy, int, (void*))
// ... and newer ones this.
#define LOADBACK_HIP_BATCH(X) \
  X(hipMemcpyBatchAsync, int, (void**, void**, std::size_t*, std::size_t, void*, std::size_t*, std::size_t, std::size_t*, void*))

struct Calls {
#define LOADBACK_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  LOADBACK_HIP_CALLS(LOADBACK_MEMBER)
  LOADBACK_HIP_BATCH(LOADBACK_MEMBER)
#undef LOADBACK_MEMBER
};

}  // namespace loadback::gpu::abi
