// Python arrays as bytes: anything with DLPack or the buffer protocol, in memory of the CPU, C-contiguous, of any shape and type.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

#include "core/page_copier.hpp"

namespace loadback::bind {

using Writable = nanobind::ndarray<nanobind::device::cpu, nanobind::c_contig>;
using Readable = nanobind::ndarray<nanobind::ro, nanobind::device::cpu, nanobind::c_contig>;
using Numbers = nanobind::ndarray<const std::int64_t, nanobind::ndim<1>, nanobind::device::cpu, nanobind::c_contig>;

// An argument that is taken as it is: a converted copy would be written to in vain.
inline auto whole(const char* name) { return nanobind::arg(name).noconvert(); }

inline core::Region region_of(const Writable& array) { return {static_cast<std::byte*>(array.data()), array.nbytes()}; }

// What is only read is never written through this.
inline core::Region region_of(const Readable& array) {
  return {static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data()))), array.nbytes()};
}

inline std::span<const std::int64_t> numbers_of(const Numbers& array) { return {array.data(), array.shape(0)}; }

}  // namespace loadback::bind
