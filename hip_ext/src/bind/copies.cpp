#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

core::Isa isa_of(const std::string& name) {
  if (name == "auto") return core::best_isa();
  for (const core::Isa isa : {core::Isa::portable, core::Isa::avx2, core::Isa::avx512})
    if (core::isa_name(isa) == name) return isa;
  throw std::invalid_argument("isa is auto, portable, avx2 or avx512, not " + name);
}

std::vector<core::Move> moves_of(const Numbers& to, const Numbers& from, const Numbers& lengths) {
  const auto targets = numbers_of(to), sources = numbers_of(from), bytes = numbers_of(lengths);
  if (targets.size() != sources.size() || targets.size() != bytes.size())
    throw std::invalid_argument("to, from and lengths must be equally long");
  std::vector<core::Move> moves(targets.size());
  for (std::size_t index = 0; index < moves.size(); ++index) {
    if (bytes[index] < 0) throw std::invalid_argument("a length is below 0");
    moves[index] = {reinterpret_cast<std::byte*>(targets[index]), reinterpret_cast<const std::byte*>(sources[index]),
                    static_cast<std::size_t>(bytes[index])};
  }
  return moves;
}

}  // namespace

void bind_copies(nb::module_& module) {
  nb::class_<core::PageCopier>(module, "PageCopier",
                               "Copies batches of pages with non-temporal stores on threads of its own, without the interpreter's "
                               "lock. May be used by several threads at once. Do not use after a fork.")
      .def("__init__",
           [](core::PageCopier* self, unsigned threads, const std::string& isa, const std::vector<int>& cpus) {
             new (self) core::PageCopier(threads, isa_of(isa), cpus);
           },
           "threads"_a = 2, "isa"_a = "auto", "cpus"_a = std::vector<int>{},
           "`threads` counts the caller. `isa`: auto, portable, avx2 or avx512; ValueError where the processor has not got it. "
           "`cpus`: what the helpers are pinned to.")
      .def("gather",
           [](core::PageCopier& self, const Writable& packed, const Readable& pool, const Numbers& pages, std::size_t page_bytes) {
             const auto to = region_of(packed), from = region_of(pool);
             const auto numbers = numbers_of(pages);
             const nb::gil_scoped_release release;
             self.gather(to, from, numbers, page_bytes);
           },
           whole("packed"), whole("pool"), whole("pages"), "page_bytes"_a,
           "packed[i] = pool[pages[i]], for pages of `page_bytes`. Arrays are C-contiguous, of any shape, type and alignment; "
           "`pages` is int64 of shape (n,). IndexError for a page that is not in `pool`; ValueError where `packed` holds fewer "
           "than n pages or overlaps `pool`.")
      .def("scatter",
           [](core::PageCopier& self, const Writable& pool, const Readable& packed, const Numbers& pages, std::size_t page_bytes) {
             const auto to = region_of(pool), from = region_of(packed);
             const auto numbers = numbers_of(pages);
             const nb::gil_scoped_release release;
             self.scatter(to, from, numbers, page_bytes);
           },
           whole("pool"), whole("packed"), whole("pages"), "page_bytes"_a,
           "pool[pages[i]] = packed[i]. As `gather`; ValueError also for a page that is named twice.")
      .def("move",
           [](core::PageCopier& self, const Numbers& to, const Numbers& from, const Numbers& lengths) {
             const auto moves = moves_of(to, from, lengths);
             const nb::gil_scoped_release release;
             self.move(moves);
           },
           whole("to"), whole("from_"), whole("lengths"),
           "Copy `lengths[i]` bytes from address `from_[i]` to address `to[i]`, all int64 of shape (n,). The caller answers for the "
           "addresses. ValueError where bytes that are written overlap any others that are named.")
      .def("flat",
           [](core::PageCopier& self, const Writable& to, const Readable& from) {
             const auto target = region_of(to), source = region_of(from);
             const nb::gil_scoped_release release;
             self.flat(target, source);
           },
           whole("to"), whole("from_"),
           "Copy one run of bytes straight through, on all threads: what gathers are measured against. ValueError where lengths "
           "differ or bytes overlap.")
      .def_prop_ro("isa", [](const core::PageCopier& self) { return std::string(core::isa_name(self.isa())); })
      .def_prop_ro("threads", &core::PageCopier::threads);
  module.def(
      "isas",
      [] {
        std::vector<std::string> names;
        for (const core::Isa isa : {core::Isa::portable, core::Isa::avx2, core::Isa::avx512})
          if (core::has_isa(isa)) names.emplace_back(core::isa_name(isa));
        return names;
      },
      "What this processor has.");
}

}  // namespace loadback::bind
