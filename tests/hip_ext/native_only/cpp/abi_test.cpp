// Compiles only where our table of HIP's calls and constants is what the real headers declare.
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

#include <type_traits>

#include "gpu/hip_abi.hpp"

namespace abi = loadback::gpu::abi;

// The same in a register: pointers to anything, integers and enums of one size.
template <class Ours, class Theirs>
constexpr bool same_value() {
  constexpr bool pointers = std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  constexpr bool numbers = (std::is_integral_v<Ours> || std::is_enum_v<Ours>) && (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);
  return (pointers || numbers) && sizeof(Ours) == sizeof(Theirs);
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<same_value<OurResult, TheirResult>() && (same_value<Ours, Theirs>() && ...)> {};

#define CHECK_CALL(name, result, parameters) static_assert(SameCall<decltype(abi::Calls::name), decltype(&::name)>::value, #name);
LOADBACK_HIP_CALLS(CHECK_CALL)
#ifdef WITH_BATCH
LOADBACK_HIP_BATCH(CHECK_CALL)
#endif

static_assert(abi::kSuccess == hipSuccess);
static_assert(abi::kNoDevice == hipErrorNoDevice);
static_assert(abi::kNotReady == hipErrorNotReady);
static_assert(abi::kAlreadyRegistered == hipErrorHostMemoryAlreadyRegistered);
static_assert(abi::kNotSupported == hipErrorNotSupported);
static_assert(abi::kHostToDevice == hipMemcpyHostToDevice);
static_assert(abi::kDeviceToHost == hipMemcpyDeviceToHost);
static_assert(abi::kStreamNonBlocking == hipStreamNonBlocking);
static_assert(abi::kEventDisableTiming == hipEventDisableTiming);
static_assert(abi::kRegisterPortable == hipHostRegisterPortable);

// The check itself can fail.
static_assert(!SameCall<int (*)(int), int (*)(long)>::value && !SameCall<int (*)(int), int (*)(int, int)>::value);

int main() {}
