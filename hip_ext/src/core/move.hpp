// Bytes from one place to another.
#pragma once

#include <cstddef>

namespace loadback::core {

struct Move {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

}  // namespace loadback::core
