#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "bind/bindings.hpp"
#include "core/descriptor.hpp"
#include "core/host_buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

using core::Backing;
using core::BufferReport;
using core::HostBuffer;

int get_buffer(PyObject* object, Py_buffer* view, int flags) {
  auto* const buffer = nb::inst_ptr<HostBuffer>(nb::handle(object));
  return PyBuffer_FillInfo(view, object, buffer->data(), static_cast<Py_ssize_t>(buffer->bytes()), 0, flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

void bind_report(nb::module_& module) {
  nb::enum_<core::Prefault>(module, "Prefault", "How memory was filled before use.")
      .value("NONE", core::Prefault::none)
      .value("POPULATED", core::Prefault::populated)
      .value("TOUCHED", core::Prefault::touched);
  nb::enum_<Backing>(module, "Backing", "What memory is backed by; the memfd ones can be shared with other processes.")
      .value("PLAIN", Backing::plain)
      .value("THP", Backing::thp)
      .value("HUGETLB", Backing::hugetlb)
      .value("MEMFD", Backing::memfd)
      .value("MEMFD_HUGETLB", Backing::memfd_hugetlb);
  nb::class_<BufferReport>(module, "BufferReport", "What was really got.")
      .def_ro("asked", &BufferReport::asked)
      .def_ro("got", &BufferReport::got)
      .def_ro("huge_bytes", &BufferReport::huge_bytes, "Bytes that are on huge pages.")
      .def_ro("prefault", &BufferReport::prefault)
      .def_ro("prefault_ms", &BufferReport::prefault_ms)
      .def_ro("node", &BufferReport::node, "The NUMA node of all pages that were looked at; -1: several, or unknown.")
      .def_ro("note", &BufferReport::note, "Why it is not what was asked for; empty where it is.");
}

void bind_buffer(nb::module_& module) {
  nb::class_<HostBuffer>(module, "HostBuffer", nb::type_slots(buffer_slots),
                         "Memory for pages, with the buffer protocol (writable bytes). It is freed with the last view of it.")
      .def_static(
          "create",
          [](std::size_t bytes, Backing backing, bool required, bool prefault, int node) {
            const nb::gil_scoped_release release;
            return HostBuffer::create({bytes, backing, required, prefault, node});
          },
          "bytes"_a, "backing"_a = Backing::thp, nb::kw_only(), "required"_a = false, "prefault"_a = true, "node"_a = -1,
          "`required`: OSError, saying what to set, instead of the next best backing. `node`: bind to this NUMA node; ValueError "
          "where there is none such.")
      .def_static("attach", &HostBuffer::attach, "fd"_a, "bytes"_a,
                  "Map what another process made. ValueError beyond its end; `fd` stays the caller's.")
      .def_prop_ro("address", [](const HostBuffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.data()); })
      .def_prop_ro("bytes", &HostBuffer::bytes)
      .def_prop_ro("fd", &HostBuffer::fd, "To be handed to other processes; -1: not to be shared.")
      .def_prop_ro("report", &HostBuffer::report);
}

}  // namespace

void bind_memory(nb::module_& module) {
  bind_report(module);
  bind_buffer(module);
  module.def("numa_nodes", &core::numa_nodes, "root"_a = "/sys/devices/system/node", "Online NUMA nodes and their CPUs.");
  module.def("parse_cpu_list", [](const std::string& text) { return core::parse_cpu_list(text); }, "text"_a,
             "CPUs of a list as the kernel writes it: \"0-2,5\". ValueError for anything else.");
  module.def(
      "send_descriptor",
      [](int socket, int fd, const nb::bytes& note) {
        const std::string_view text(note.c_str(), note.size());
        const nb::gil_scoped_release release;
        core::send_descriptor(socket, fd, text);
      },
      "socket"_a, "fd"_a, "note"_a, "Hand an open descriptor and 1 to 4096 bytes to the other side of a Unix socket. Raises OSError.");
  module.def(
      "receive_descriptor",
      [](int socket) {
        core::Received received;
        {
          const nb::gil_scoped_release release;
          received = core::receive_descriptor(socket);
        }
        return std::pair(received.fd, nb::bytes(received.note.data(), received.note.size()));
      },
      "socket"_a, "A descriptor, the caller's to close, and its note. Raises OSError where not exactly one comes.");
}

}  // namespace loadback::bind
