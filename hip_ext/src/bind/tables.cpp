#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bindings.hpp"
#include "core/id_table.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

core::IdTable::Digests digests_of(const nb::bytes& joined) {
  if (joined.size() % core::kPageDigestBytes)
    throw std::invalid_argument("digests come in " + std::to_string(core::kPageDigestBytes) + " bytes each, " +
                                std::to_string(joined.size()) + " is no multiple of it");
  return {static_cast<const std::byte*>(joined.data()), joined.size()};
}

std::int64_t positive(std::int64_t number) {
  if (number < 1) throw std::invalid_argument("numbers are above 0");
  return number;
}

}  // namespace

void bind_tables(nb::module_& module) {
  nb::class_<core::IdTable>(module, "IdTable",
                            "Numbers above 0 by id, which is the first 8 bytes of a 32-byte digest as a signed number of this machine. "
                            "Batches take digests joined; ValueError for a broken length. One thread at a time.")
      .def(nb::init<>())
      .def("__len__", &core::IdTable::size)
      .def("get", [](const core::IdTable& self, std::int64_t id) { return self.get(static_cast<std::uint64_t>(id)); }, "id"_a,
           "0 where it is not there.")
      .def("put",
           [](core::IdTable& self, std::int64_t id, std::int64_t number) {
             self.put(static_cast<std::uint64_t>(id), positive(number));
           },
           "id"_a, "number"_a)
      .def("drop", [](core::IdTable& self, std::int64_t id) { return self.drop(static_cast<std::uint64_t>(id)); }, "id"_a,
           "Whether it was there.")
      .def("fresh", [](const core::IdTable& self, const nb::bytes& digests) { return self.fresh(digests_of(digests)); }, "digests"_a,
           "Whether the ids are all different, and none of them is there.")
      .def("get_all",
           [](const core::IdTable& self, const nb::bytes& digests) {
             const auto all = digests_of(digests);
             std::vector<std::int64_t> numbers(all.size() / core::kPageDigestBytes);
             self.get_all(all, numbers.data());
             return numbers;
           },
           "digests"_a)
      .def("put_all",
           [](core::IdTable& self, const nb::bytes& digests, std::int64_t first, std::int64_t step) {
             if (step < 0) throw std::invalid_argument("numbers are above 0");
             self.put_all(digests_of(digests), positive(first), step);
           },
           "digests"_a, "first"_a, "step"_a, "The i-th gets `first + i * step`.")
      .def("drop_all", [](core::IdTable& self, const nb::bytes& digests) { self.drop_all(digests_of(digests)); }, "digests"_a,
           "Those that are there.");
}

}  // namespace loadback::bind
