// The two ways of asking the system for many reads at once: an io_uring, or threads that pread.
#pragma once

#include <memory>
#include <string>

#include "core/transfer.hpp"

namespace loadback::core {

inline constexpr unsigned kMaxDepth = 1024;

// Throws std::system_error where this kernel, or its settings, have none. One thread at a time.
std::unique_ptr<IoQueue> open_uring(unsigned depth);
// `threads` requests are really under way at once.
std::unique_ptr<IoQueue> open_threads(unsigned depth, unsigned threads);

}  // namespace loadback::core
