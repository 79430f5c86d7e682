#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "core/io_queue.hpp"

namespace loadback::core {
namespace {

constexpr std::size_t kMaxRequestBytes = 1 << 30;  // the length is 32 bits wide

class Mapping {
 public:
  Mapping(int fd, std::size_t bytes, std::uint64_t offset)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset))) {
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping an io_uring");
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  template <class Type>
  Type* at(std::size_t offset) const {
    return reinterpret_cast<Type*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int set_up(unsigned depth, io_uring_params& params) {
  const int fd = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "no io_uring: see kernel.io_uring_disabled");
  if (params.features & IORING_FEAT_SINGLE_MMAP) return fd;
  close(fd);
  throw std::system_error(ENOSYS, std::generic_category(), "io_uring of Linux 5.6 or later is needed");
}

class Uring final : public IoQueue {
 public:
  explicit Uring(unsigned depth)
      : fd_(set_up(depth, params_)),
        rings_(fd_.get(), std::max(params_.sq_off.array + params_.sq_entries * sizeof(unsigned),
                                   params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe)),
               IORING_OFF_SQ_RING),
        entries_(fd_.get(), params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES),
        depth_(depth) {}

  unsigned depth() const override { return depth_; }

  void start(Direction direction, const Transfer& transfer, std::uint64_t tag) override {
    if (unsubmitted_ == params_.sq_entries) enter(0);
    const unsigned tail = *rings_.at<unsigned>(params_.sq_off.tail);
    const unsigned slot = tail & *rings_.at<unsigned>(params_.sq_off.ring_mask);
    io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[slot];
    entry = {};
    entry.opcode = direction == Direction::read ? IORING_OP_READ : IORING_OP_WRITE;
    entry.fd = transfer.fd;
    entry.off = transfer.offset;
    entry.addr = reinterpret_cast<std::uint64_t>(transfer.memory);
    entry.len = static_cast<unsigned>(std::min(transfer.bytes, kMaxRequestBytes));
    entry.user_data = tag;
    rings_.at<unsigned>(params_.sq_off.array)[slot] = slot;
    std::atomic_ref(*rings_.at<unsigned>(params_.sq_off.tail)).store(tail + 1, std::memory_order_release);
    ++unsubmitted_;
  }

  std::span<const Completion> reap() override {
    enter(1);
    const auto tail = std::atomic_ref(*rings_.at<unsigned>(params_.cq_off.tail)).load(std::memory_order_acquire);
    auto head = *rings_.at<unsigned>(params_.cq_off.head);
    const unsigned mask = *rings_.at<unsigned>(params_.cq_off.ring_mask);
    reaped_.clear();
    for (; head != tail; ++head) {
      const io_uring_cqe& entry = rings_.at<io_uring_cqe>(params_.cq_off.cqes)[head & mask];
      reaped_.push_back({entry.user_data, entry.res});
    }
    std::atomic_ref(*rings_.at<unsigned>(params_.cq_off.head)).store(head, std::memory_order_release);
    return reaped_;
  }

 private:
  // Hands over all that was started; the kernel may take them in several parts. A refusal is not the end of those under way, and
  // their memory is the caller's: so we stay until the kernel takes them, or completes some.
  void enter(unsigned wanted) {
    do {
      const auto taken = syscall(SYS_io_uring_enter, fd_.get(), unsubmitted_, wanted, wanted ? IORING_ENTER_GETEVENTS : 0u, nullptr, 0);
      if (taken >= 0)
        unsubmitted_ -= static_cast<unsigned>(taken);
      else if (errno != EINTR)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (unsubmitted_ || (wanted && !completed()));
  }

  bool completed() const {
    return std::atomic_ref(*rings_.at<unsigned>(params_.cq_off.tail)).load(std::memory_order_acquire) !=
           *rings_.at<unsigned>(params_.cq_off.head);
  }

  io_uring_params params_{};
  Descriptor fd_;
  Mapping rings_;
  Mapping entries_;
  unsigned depth_;
  unsigned unsubmitted_ = 0;
  std::vector<Completion> reaped_;
};

}  // namespace

std::unique_ptr<IoQueue> open_uring(unsigned depth) {
  if (depth < 1 || depth > kMaxDepth) throw std::invalid_argument("depth must be 1 to 1024");
  return std::make_unique<Uring>(depth);
}

}  // namespace loadback::core
