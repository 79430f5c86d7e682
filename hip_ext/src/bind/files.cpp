#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bindings.hpp"
#include "core/io_queue.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

using Outcomes = std::pair<std::vector<std::int64_t>, std::vector<int>>;

// A queue and what was got; a lock, since one queue serves one thread at a time.
class FileTransfers {
 public:
  FileTransfers(unsigned depth, unsigned threads, const std::string& way) {
    if (way != "auto" && way != "uring" && way != "threads") throw std::invalid_argument("way is auto, uring or threads, not " + way);
    if (way != "threads") {
      try {
        queue_ = core::open_uring(depth);
        this->way = "uring";
        return;
      } catch (const std::system_error& error) {
        if (way == "uring") throw;
        note = error.what();
      }
    }
    queue_ = core::open_threads(depth, threads);
    this->way = "threads";
  }

  Outcomes run(core::Direction direction, const Numbers& fds, const Numbers& offsets, const Numbers& addresses, const Numbers& lengths) {
    const auto transfers = transfers_of(numbers_of(fds), numbers_of(offsets), numbers_of(addresses), numbers_of(lengths));
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    Outcomes outcomes;
    for (const core::Outcome& outcome : core::transfer_all(*queue_, direction, transfers)) {
      outcomes.first.push_back(static_cast<std::int64_t>(outcome.done));
      outcomes.second.push_back(outcome.error);
    }
    return outcomes;
  }

  std::string way;
  std::string note;

 private:
  using Span = std::span<const std::int64_t>;

  static std::vector<core::Transfer> transfers_of(Span fds, Span offsets, Span addresses, Span lengths) {
    if (fds.size() != offsets.size() || fds.size() != addresses.size() || fds.size() != lengths.size())
      throw std::invalid_argument("fds, offsets, addresses and lengths must be equally long");
    std::vector<core::Transfer> transfers(fds.size());
    for (std::size_t index = 0; index < transfers.size(); ++index) {
      if (offsets[index] < 0 || lengths[index] < 0) throw std::invalid_argument("an offset or length is below 0");
      transfers[index] = {static_cast<int>(fds[index]), static_cast<std::uint64_t>(offsets[index]),
                          reinterpret_cast<std::byte*>(addresses[index]), static_cast<std::size_t>(lengths[index])};
    }
    return transfers;
  }

  std::unique_ptr<core::IoQueue> queue_;
  std::mutex mutex_;
};

constexpr const char* kReadDoc =
    "Fill memory from files, all int64 of shape (n,): `lengths[i]` bytes from `offsets[i]` of descriptor `fds[i]` to address "
    "`addresses[i]`. For each, the bytes done and an errno: fewer bytes with errno 0 mean that the file ended. Neighbours are "
    "joined to up to 4 MiB. All multiples of 4096 for descriptors with O_DIRECT. Nothing is under way on return. The caller "
    "answers for the addresses.";

}  // namespace

void bind_files(nb::module_& module) {
  nb::class_<FileTransfers>(module, "FileTransfers",
                            "Reads and writes many places of files at once, without the interpreter's lock. Threads take turns: "
                            "give each one of its own.")
      .def(nb::init<unsigned, unsigned, const std::string&>(), "depth"_a = 64, "threads"_a = 16, "way"_a = "auto",
           "`depth` are under way at most (1 to 1024). `way`: uring; threads, `threads` of them with pread; or auto, which is threads "
           "where there is no io_uring. OSError where uring is asked for and not to be had.")
      .def("read",
           [](FileTransfers& self, const Numbers& fds, const Numbers& offsets, const Numbers& addresses, const Numbers& lengths) {
             return self.run(core::Direction::read, fds, offsets, addresses, lengths);
           },
           whole("fds"), whole("offsets"), whole("addresses"), whole("lengths"), kReadDoc)
      .def("write",
           [](FileTransfers& self, const Numbers& fds, const Numbers& offsets, const Numbers& addresses, const Numbers& lengths) {
             return self.run(core::Direction::write, fds, offsets, addresses, lengths);
           },
           whole("fds"), whole("offsets"), whole("addresses"), whole("lengths"), "As `read`, the other way.")
      .def_ro("way", &FileTransfers::way, "What was got: uring or threads.")
      .def_ro("note", &FileTransfers::note, "Why there is no io_uring, where auto did without.");
}

}  // namespace loadback::bind
