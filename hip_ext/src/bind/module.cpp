#include "bind/bindings.hpp"

NB_MODULE(_native, module) {
  module.doc() = "Native page copies, SSD reads and HIP restores.";
  loadback::bind::bind_copies(module);
}
