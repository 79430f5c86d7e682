// Memory for pages: in one of five backings, filled before use, on one NUMA node. What was asked for is not always what one gets,
// so that what was got is measured and told. Knows nothing of what lies in it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace loadback::core {

enum class Backing { plain, thp, hugetlb, memfd, memfd_hugetlb };
enum class Prefault { none, populated, touched };

inline constexpr std::size_t kHugeBytes = 2 << 20;

struct BufferRequest {
  std::size_t bytes;
  Backing backing;
  bool required;  // else the next best of the same kind (shared or not) will do
  bool prefault;
  int node;  // -1: any
};

struct BufferReport {
  Backing asked;
  Backing got;
  std::size_t huge_bytes;  // really on huge pages
  Prefault prefault;
  double prefault_ms;
  int node;          // where all pages lie that were looked at; -1: on several, or not to be known
  std::string note;  // why it is not what was asked for; empty where it is
};

// Owns its mapping and, where it can be shared, its descriptor.
class HostBuffer {
 public:
  // Throws std::system_error, whose message says what to set, and std::invalid_argument.
  static HostBuffer create(const BufferRequest& request);
  // Maps what another process made; `fd` is duplicated. Throws std::system_error; std::invalid_argument beyond its end.
  static HostBuffer attach(int fd, std::size_t bytes);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&&) = delete;
  ~HostBuffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1: not to be shared
  const BufferReport& report() const { return report_; }

 private:
  HostBuffer(std::byte* data, std::size_t bytes, std::size_t mapped, int fd, void* reserved, std::size_t reserved_bytes,
             BufferReport report)
      : data_(data), bytes_(bytes), mapped_(mapped), fd_(fd), reserved_(reserved), reserved_bytes_(reserved_bytes),
        report_(std::move(report)) {}
  static HostBuffer of_kind(const BufferRequest& request, Backing backing);
  void settle(const BufferRequest& request);

  std::byte* data_;
  std::size_t bytes_;
  std::size_t mapped_;
  int fd_;
  void* reserved_;  // with guards around
  std::size_t reserved_bytes_;
  BufferReport report_;
};

std::string_view backing_name(Backing backing);
// Online nodes and their CPUs, from sysfs; node 0 with all CPUs where there is none. `root` is for tests.
std::map<int, std::vector<int>> numa_nodes(const std::string& root = "/sys/devices/system/node");
// "0-2,5" -> 0 1 2 5. Throws std::invalid_argument.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace loadback::core
