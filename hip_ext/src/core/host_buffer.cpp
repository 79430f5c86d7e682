#include "core/host_buffer.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

namespace loadback::core {
namespace {

constexpr std::size_t kSampledPages = 64;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool is_huge(Backing backing) { return backing == Backing::hugetlb || backing == Backing::memfd_hugetlb; }

bool is_shared(Backing backing) { return backing == Backing::memfd || backing == Backing::memfd_hugetlb; }

std::string reserve_hint(std::size_t bytes) {
  return "no " + std::to_string(bytes >> 20) + " MiB of huge pages: raise vm.nr_hugepages by " +
         std::to_string(rounded(bytes, kHugeBytes) / kHugeBytes);
}

int open_memory(std::size_t bytes, bool huge) {
  const int fd = static_cast<int>(
      syscall(SYS_memfd_create, "loadback-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u)));
  if (fd < 0) fail("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    const int error = errno;
    close(fd);
    errno = error;
    fail("sizing a memory file");
  }
  return fd;
}

struct Mapped {
  void* data;  // MAP_FAILED with errno
  void* reserved;
  std::size_t reserved_bytes;
};

// At a multiple of 2 MiB, without which the first and last part would never get huge pages, and between guards: they keep smaps
// from counting neighbours with it, and catch overruns.
Mapped map_private(std::size_t bytes) {
  const std::size_t spare = rounded(bytes, page_bytes()) + 2 * kHugeBytes;
  void* const got = mmap(nullptr, spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return {got, got, 0};
  const auto start = reinterpret_cast<std::uintptr_t>(got);
  void* const data = reinterpret_cast<void*>(rounded(start + page_bytes(), kHugeBytes));
  if (!mprotect(data, bytes, PROT_READ | PROT_WRITE)) return {data, got, spare};
  const int error = errno;
  munmap(got, spare);
  errno = error;
  return {MAP_FAILED, got, 0};
}

Mapped map_memory(Backing backing, std::size_t bytes, int fd) {
  if (fd < 0 && backing != Backing::hugetlb) return map_private(bytes);
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB;
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  return {data, data, bytes};
}

// What smaps counts as huge between these addresses.
std::size_t huge_bytes_in(const std::byte* data, std::size_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(data), end = start + bytes;
  std::ifstream maps("/proc/self/smaps");
  std::size_t found = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long first, last, kib;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &first, &last) == 2)
      inside = first < end && last > start;
    else if (inside && (std::sscanf(line.c_str(), "AnonHugePages: %llu", &kib) == 1 ||
                        std::sscanf(line.c_str(), "ShmemPmdMapped: %llu", &kib) == 1))
      found += kib << 10;
  }
  return std::min(found, bytes);
}

void touch(std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += page_bytes()) static_cast<volatile std::byte*>(data)[at] = std::byte{0};
}

void bind_to(std::byte* data, std::size_t bytes, int node) {
  if (!numa_nodes().contains(node)) throw std::invalid_argument("this machine has no NUMA node " + std::to_string(node));
  unsigned long mask[16] = {};
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node >= 16 * kBits) throw std::invalid_argument("NUMA nodes above 1023 are not supported");
  mask[node / kBits] |= 1UL << node % kBits;
  if (syscall(SYS_mbind, data, bytes, MPOL_BIND, mask, 16 * kBits + 1, 0)) fail("mbind to node " + std::to_string(node));
}

int node_of(const std::byte* data, std::size_t bytes) {
  const std::size_t pages = std::min(kSampledPages, bytes / page_bytes());
  std::vector<const void*> sampled(pages);
  std::vector<int> nodes(pages, -1);
  for (std::size_t index = 0; index < pages; ++index)
    sampled[index] = data + index * (bytes / pages) / page_bytes() * page_bytes();
  if (syscall(SYS_move_pages, 0, pages, sampled.data(), nullptr, nodes.data(), 0)) return -1;
  const bool same = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return node >= 0 && node == nodes[0]; });
  return pages && same ? nodes[0] : -1;
}

Backing next_best(Backing backing) {
  switch (backing) {
    case Backing::hugetlb: return Backing::thp;
    case Backing::memfd_hugetlb: return Backing::memfd;
    default: return Backing::plain;
  }
}

}  // namespace

std::string_view backing_name(Backing backing) {
  switch (backing) {
    case Backing::thp: return "thp";
    case Backing::hugetlb: return "hugetlb";
    case Backing::memfd: return "memfd";
    case Backing::memfd_hugetlb: return "memfd_hugetlb";
    default: return "plain";
  }
}

HostBuffer HostBuffer::create(const BufferRequest& request) {
  if (!request.bytes) throw std::invalid_argument("bytes must be above 0");
  if (!is_huge(request.backing) || request.required) return of_kind(request, request.backing);
  try {
    return of_kind(request, request.backing);
  } catch (const std::system_error& error) {
    HostBuffer buffer = of_kind(request, next_best(request.backing));
    buffer.report_.note = error.what() + (buffer.report_.note.empty() ? "" : "; " + buffer.report_.note);
    return buffer;
  }
}

HostBuffer HostBuffer::of_kind(const BufferRequest& request, Backing backing) {
  const std::size_t mapped = rounded(request.bytes, backing == Backing::plain || backing == Backing::memfd ? page_bytes() : kHugeBytes);
  const int fd = is_shared(backing) ? open_memory(mapped, is_huge(backing)) : -1;
  const Mapped memory = map_memory(backing, mapped, fd);
  if (memory.data == MAP_FAILED) {
    const int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    fail(is_huge(backing) ? reserve_hint(mapped) : "mapping " + std::to_string(mapped) + " bytes");
  }
  HostBuffer buffer(static_cast<std::byte*>(memory.data), request.bytes, mapped, fd, memory.reserved, memory.reserved_bytes,
                    {request.backing, backing, 0, Prefault::none, 0, -1, ""});
  buffer.settle(request);
  return buffer;
}

// Bound first, then filled, then looked at.
void HostBuffer::settle(const BufferRequest& request) {
  if (request.node >= 0) bind_to(data_, mapped_, request.node);
  if (report_.got == Backing::thp || report_.got == Backing::memfd) madvise(data_, mapped_, MADV_HUGEPAGE);
  if (request.prefault) {
    const auto start = std::chrono::steady_clock::now();
    report_.prefault = Prefault::populated;
    if (madvise(data_, mapped_, MADV_POPULATE_WRITE)) {
      if (errno != EINVAL) fail("filling " + std::to_string(mapped_ >> 20) + " MiB: lower bytes");
      touch(data_, mapped_);
      report_.prefault = Prefault::touched;
    }
    report_.prefault_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    report_.node = node_of(data_, mapped_);
  }
  report_.huge_bytes = is_huge(report_.got) ? mapped_ : huge_bytes_in(data_, mapped_);
  if (report_.got == Backing::thp && request.prefault && !report_.huge_bytes) {
    if (request.required && request.backing == Backing::thp)
      throw std::system_error(ENOMEM, std::generic_category(), "no transparent huge pages: set transparent_hugepage/enabled to madvise");
    report_.got = Backing::plain;
    report_.note = "no transparent huge pages: set transparent_hugepage/enabled to madvise";
  }
}

HostBuffer HostBuffer::attach(int fd, std::size_t bytes) {
  struct stat status;
  if (fstat(fd, &status)) fail("looking at a descriptor");
  if (!bytes || bytes > static_cast<std::size_t>(status.st_size))
    throw std::invalid_argument("the memory file has " + std::to_string(status.st_size) + " bytes, not " + std::to_string(bytes));
  const bool huge = static_cast<std::size_t>(status.st_blksize) >= kHugeBytes;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) fail("duplicating a descriptor");
  const Backing backing = huge ? Backing::memfd_hugetlb : Backing::memfd;
  const std::size_t mapped = rounded(bytes, huge ? kHugeBytes : page_bytes());
  const Mapped memory = map_memory(backing, mapped, own);
  if (memory.data == MAP_FAILED) {
    const int error = errno;
    close(own);
    errno = error;
    fail("mapping a memory file");
  }
  return HostBuffer(static_cast<std::byte*>(memory.data), bytes, mapped, own, memory.reserved, memory.reserved_bytes,
                    {backing, backing, huge ? mapped : 0, Prefault::none, 0, -1, ""});
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      mapped_(other.mapped_),
      fd_(std::exchange(other.fd_, -1)),
      reserved_(std::exchange(other.reserved_, nullptr)),
      reserved_bytes_(other.reserved_bytes_),
      report_(std::move(other.report_)) {}

HostBuffer::~HostBuffer() {
  if (reserved_) munmap(reserved_, reserved_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace loadback::core
