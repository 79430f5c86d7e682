// One function a module of the Python API; each registers its classes.
#pragma once

#include <nanobind/nanobind.h>

namespace loadback::bind {

void bind_copies(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_files(nanobind::module_& module);
void bind_restores(nanobind::module_& module);
void bind_tables(nanobind::module_& module);

}  // namespace loadback::bind
