// Lets every file register its own Python bindings and its own part of install(), so that none depends on a central list.
#pragma once

#include <pybind11/pybind11.h>

namespace phantom {

// `static const Binding binding([](pybind11::module_& m) { m.def(...); });` at namespace scope.
struct Binding {
  explicit Binding(void (*bind)(pybind11::module_&));
};

// Run by install(config) in ascending `order`: 10 allocator, 20 guard, 30 hooks, 40 dispatch, 50 collectives.
struct Installer {
  Installer(int order, void (*install)());
};

}  // namespace phantom
