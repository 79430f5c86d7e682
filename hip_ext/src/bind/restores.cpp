#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/bindings.hpp"
#include "gpu/loadback.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace loadback::bind {
namespace {

using namespace loadback::gpu;
using Addresses = std::span<const std::int64_t>;

struct Probe {
  Status status = Status::ok;
  std::string detail;
  std::string path;
  int version = 0;
  int devices = 0;
  bool has_batch = false;
  bool sdma_off = sdma_disabled();
};

Probe probe(const std::string& path) {
  Probe found;
  try {
    const auto library = HipLibrary::open(path);
    found.path = library->path;
    found.version = library->version;
    found.devices = library->devices;
    found.has_batch = library->has_batch();
    if (found.sdma_off) found.detail = "HSA_ENABLE_SDMA=0: copies run as kernels and take compute units";
  } catch (const HipError& error) {
    found.status = error.status;
    found.detail = error.what();
  }
  return found;
}

Deadline deadline_of(std::optional<double> deadline_s) {
  if (!deadline_s) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*deadline_s));
}

std::vector<Group> groups_of(Addresses to, Addresses from, Addresses lengths, Addresses ends) {
  if (to.size() != from.size() || to.size() != lengths.size()) throw std::invalid_argument("to, from and lengths must be equally long");
  if (ends.empty() ? !to.empty() : ends.back() != static_cast<std::int64_t>(to.size()))
    throw std::invalid_argument("group_ends must end with the number of copies");
  std::vector<Group> groups(ends.size());
  std::int64_t start = 0;
  for (std::size_t group = 0; group < groups.size(); start = ends[group++]) {
    if (ends[group] < start) throw std::invalid_argument("group_ends must not fall");
    for (auto index = static_cast<std::size_t>(start); index < static_cast<std::size_t>(ends[group]); ++index) {
      if (lengths[index] < 0) throw std::invalid_argument("a length is below 0");
      groups[group].push_back({reinterpret_cast<std::byte*>(to[index]), reinterpret_cast<const std::byte*>(from[index]),
                               static_cast<std::size_t>(lengths[index])});
    }
  }
  return groups;
}

std::shared_ptr<Loadback> open_loadback(const std::string& path, int device, unsigned load_streams, std::size_t window_bytes,
                                        std::size_t chunk_bytes, std::size_t batch_max, bool allow_unpinned, bool high_priority) {
  const nb::gil_scoped_release release;
  const Options options{device, load_streams, window_bytes, {chunk_bytes, batch_max}, allow_unpinned, high_priority};
  return std::make_shared<Loadback>(HipLibrary::open(path), options);
}

template <Way way>
std::shared_ptr<Restore> copy(Loadback& self, const Numbers& to, const Numbers& from, const Numbers& lengths, const Numbers& ends,
                              std::optional<double> deadline_s) {
  const auto groups = groups_of(numbers_of(to), numbers_of(from), numbers_of(lengths), numbers_of(ends));
  const nb::gil_scoped_release release;
  return self.submit(way, groups, deadline_of(deadline_s));
}

template <Way way>
std::shared_ptr<Restore> copy_pages(Loadback& self, const PageLayout& layout, const Numbers& host_pages, const Numbers& device_pages,
                                    std::optional<double> deadline_s) {
  const auto hosts = numbers_of(host_pages), devices = numbers_of(device_pages);
  const nb::gil_scoped_release release;
  return self.submit(way, page_groups(layout, way, hosts, devices), deadline_of(deadline_s));
}

void bind_values(nb::module_& module) {
  nb::enum_<Status>(module, "HipStatus", "What became of a copy, or why there is none.")
      .value("OK", Status::ok)
      .value("NO_RUNTIME", Status::no_runtime, "No libamdhip64 is loaded or to be found.")
      .value("MISSING_CALL", Status::missing_call, "The runtime lacks a call that is needed: it is too old.")
      .value("NO_DEVICE", Status::no_device, "No GPU, or not that one.")
      .value("NOT_PINNED", Status::not_pinned, "Host memory that was not added.")
      .value("REGISTER_FAILED", Status::register_failed, "The runtime would not pin memory.")
      .value("COPY_FAILED", Status::copy_failed, "The runtime refused or failed a copy.")
      .value("CANCELLED", Status::cancelled)
      .value("PENDING", Status::pending, "Not done yet.")
      .value("BUSY", Status::busy, "Not while copies are to do.")
      .value("CLOSED", Status::closed);
  nb::class_<Probe>(module, "HipProbe", "Whether and how restores can be had here.")
      .def_ro("status", &Probe::status)
      .def_ro("detail", &Probe::detail, "Why not, or a warning.")
      .def_ro("path", &Probe::path, "Of the runtime.")
      .def_ro("version", &Probe::version)
      .def_ro("devices", &Probe::devices)
      .def_ro("has_batch", &Probe::has_batch, "Whether the runtime has hipMemcpyBatchAsync.")
      .def_ro("sdma_off", &Probe::sdma_off, "HSA_ENABLE_SDMA=0: copies would take compute units.");
  nb::class_<Progress>(module, "RestoreProgress", "How far a load or store is; `status` is PENDING until nothing is under way.")
      .def_ro("status", &Progress::status)
      .def_ro("groups", &Progress::groups)
      .def_ro("groups_done", &Progress::groups_done)
      .def_ro("bytes", &Progress::bytes)
      .def_ro("bytes_issued", &Progress::bytes_issued)
      .def_ro("bytes_done", &Progress::bytes_done)
      .def_ro("code", &Progress::code, "The hipError_t of what failed, else 0.")
      .def_ro("detail", &Progress::detail, "Why it ended, where that is not well.");
  nb::class_<Counters>(module, "LoadbackCounters", "What was done since the loadback was made.")
      .def_ro("copies_asked", &Counters::copies_asked)
      .def_ro("copies_issued", &Counters::copies_issued, "After neighbours were joined and large ones cut.")
      .def_ro("batches", &Counters::batches)
      .def_ro("bytes", &Counters::bytes)
      .def_ro("unpinned_copies", &Counters::unpinned_copies)
      .def_ro("batch_refused", &Counters::batch_refused, "The runtime knows no batches: copies go one by one.");
}

void bind_layout(nb::module_& module) {
  nb::class_<PageLayout>(module, "PageLayout",
                         "Host pages that hold all layers of a few tokens; device pages layer by layer. Addresses, and bytes.")
      .def("__init__",
           [](PageLayout* self, std::uintptr_t host, std::size_t host_pages, std::size_t host_page_stride, std::size_t host_layer_stride,
              const std::vector<std::uintptr_t>& layers, std::size_t device_pages, std::size_t device_page_stride, std::size_t bytes,
              std::size_t layers_per_group) {
             std::vector<std::byte*> bases;
             for (const std::uintptr_t layer : layers) bases.push_back(reinterpret_cast<std::byte*>(layer));
             new (self) PageLayout{reinterpret_cast<std::byte*>(host), host_pages, host_page_stride, host_layer_stride, bases,
                                   device_pages, device_page_stride, bytes, layers_per_group};
           },
           nb::kw_only(), "host"_a, "host_pages"_a, "host_page_stride"_a, "host_layer_stride"_a, "layers"_a, "device_pages"_a,
           "device_page_stride"_a, "bytes"_a, "layers_per_group"_a = 1,
           "`host`: page 0, layer 0. `layers`: page 0 of each layer on the device. `bytes`: of one page in one layer.");
}

void bind_restore(nb::module_& module) {
  nb::class_<Restore>(module, "Restore", "One load or store under way.")
      .def("progress", &Restore::progress)
      .def("group_done", &Restore::group_done, "group"_a, "IndexError for a group that there is not.")
      .def("wait", &Restore::wait, "groups"_a = SIZE_MAX, "timeout_s"_a = 30.0, nb::call_guard<nb::gil_scoped_release>(),
           "Until the first `groups` groups are there (OK), or it ended otherwise, or time is over (PENDING).")
      .def("hold_stream",
           [](const Restore& self, std::uintptr_t stream, std::size_t group, double timeout_s) {
             const nb::gil_scoped_release release;
             self.hold_stream(reinterpret_cast<void*>(stream), group, timeout_s);
           },
           "stream"_a, "group"_a, "timeout_s"_a = 30.0,
           "Make a stream of yours (the hipStream_t as a number) wait for a group. Blocks until that was submitted. HipError where it "
           "was not in time, or never will be; a copy that fails later shows in `progress`.")
      .def("cancel", &Restore::cancel, "Submit nothing more. CANCELLED once nothing is under way: until then memory is in use.");
}

void bind_loadback(nb::module_& module) {
  nb::class_<Loadback>(module, "Loadback",
                       "Copies between pinned host memory and a GPU by the runtime's asynchronous copies, on streams and a thread of "
                       "its own. HIP is looked for in this process first; HipError says why there is none.")
      .def(nb::new_(&open_loadback), "path"_a = "", "device"_a = 0, "load_streams"_a = 1, "window_bytes"_a = 32 << 20,
           "chunk_bytes"_a = 4 << 20, "batch_max"_a = kMaxBatch, "allow_unpinned"_a = false, "high_priority"_a = false,
           "`window_bytes` are under way at most, each way, in chunks of `chunk_bytes`. `allow_unpinned`: let the runtime stage what is "
           "not pinned, instead of NOT_PINNED.")
      .def("add_host",
           [](Loadback& self, std::uintptr_t address, std::size_t bytes) {
             const nb::gil_scoped_release release;
             self.add_host(reinterpret_cast<std::byte*>(address), bytes);
           },
           "address"_a, "bytes"_a,
           "Pin host memory, until it is removed or this is closed; it must stay mapped. HipError: REGISTER_FAILED.")
      .def("remove_host",
           [](Loadback& self, std::uintptr_t address) {
             const nb::gil_scoped_release release;
             self.remove_host(reinterpret_cast<std::byte*>(address));
           },
           "address"_a, "HipError: BUSY while copies are to do.")
      .def("load", &copy<Way::load>, whole("to"), whole("from_"), whole("lengths"), whole("group_ends"), "deadline_s"_a = nb::none(),
           "Host to device: `lengths[i]` bytes from address `from_[i]` to `to[i]`, int64 of shape (n,). Copies up to `group_ends[g]` make "
           "up group g, in the order in which they are wanted. With a `deadline_s` (from now) it is gentle while there is time.")
      .def("store", &copy<Way::store>, whole("to"), whole("from_"), whole("lengths"), whole("group_ends"), "deadline_s"_a = nb::none(),
           "Device to host, as `load`.")
      .def("load_pages", &copy_pages<Way::load>, "layout"_a, whole("host_pages"), whole("device_pages"), "deadline_s"_a = nb::none(),
           "Pages of all layers, int64 of shape (n,): page `host_pages[i]` to page `device_pages[i]`, a group each `layers_per_group` "
           "layers. IndexError for a page that there is not.")
      .def("store_pages", &copy_pages<Way::store>, "layout"_a, whole("host_pages"), whole("device_pages"), "deadline_s"_a = nb::none(),
           "Pages of all layers from the device to the host.")
      .def("counters", &Loadback::counters)
      .def("close", &Loadback::close, nb::call_guard<nb::gil_scoped_release>(),
           "Cancel what is to do and wait for what is under way, ten seconds at most.");
}

// HipError with `status` and `code`.
void bind_error(nb::module_& module) {
  PyObject* const type = PyErr_NewExceptionWithDoc("loadback_hip._native.HipError",
                                                          "Why HIP cannot do it: `status` (HipStatus) and `code` (hipError_t, or 0).",
                                                          PyExc_RuntimeError, nullptr);
  module.attr("HipError") = nb::borrow(type);
  const auto translate = [](const std::exception_ptr& pointer, void* type_of_error) {
    try {
      std::rethrow_exception(pointer);
    } catch (const HipError& error) {
      auto* const kind = static_cast<PyObject*>(type_of_error);
      nb::object raised = nb::borrow(kind)(error.what());
      raised.attr("status") = nb::cast(error.status);
      raised.attr("code") = error.code;
      PyErr_SetObject(kind, raised.ptr());
    }
  };
  nb::register_exception_translator(translate, type);
}

}  // namespace

void bind_restores(nb::module_& module) {
  bind_values(module);
  bind_error(module);
  bind_layout(module);
  bind_restore(module);
  bind_loadback(module);
  module.def("probe_hip", &probe, "path"_a = "", "Whether restores can be had here; raises nothing.", nb::call_guard<nb::gil_scoped_release>());
  module.def("loaded_runtime", [](const std::string& maps) { return loaded_runtime(maps); }, "maps"_a,
             "The path of a HIP runtime among the lines of /proc/PID/maps; empty where there is none.");
}

}  // namespace loadback::bind
