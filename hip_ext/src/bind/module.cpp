#include <exception>
#include <system_error>

#include "bind/bindings.hpp"

namespace nb = nanobind;

namespace {

// OSError with its errno, and the core's words on what to do about it.
void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& system) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(system.code().value(), system.what()).ptr());
  }
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Native page copies, SSD reads, page tables and HIP restores.";
  nb::set_leak_warnings(false);  // an engine's exit is no place for them
  nb::register_exception_translator(translate);
  loadback::bind::bind_copies(module);
  loadback::bind::bind_memory(module);
  loadback::bind::bind_files(module);
  loadback::bind::bind_restores(module);
  loadback::bind::bind_tables(module);
}
