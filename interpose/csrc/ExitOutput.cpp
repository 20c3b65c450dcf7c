// Keeps false reports of leaks off a forked rank's standard error. Its parent froze Python's collector before the fork
// (so that ranks share memory), hence the interpreter's end does not free what it inherited, and binding libraries
// (nanobind, in Triton) list all of that as leaked. Their lists come from Py_AtExit functions, when no Python code can
// run any more. Py_AtExit functions run last in, first out: `restore` is registered before Triton can be imported,
// `silence` after the fork, so what C++ destructors say later is seen again.
#include <Python.h>
#include <fcntl.h>
#include <unistd.h>

#include "Bindings.h"

namespace phantom {
namespace {

int kept = -1;

void silence() {
  kept = dup(STDERR_FILENO);
  const int null = open("/dev/null", O_WRONLY);
  if (kept >= 0 && null >= 0) dup2(null, STDERR_FILENO);
  if (null >= 0) close(null);
}

void restore() {
  if (kept < 0) return;
  dup2(kept, STDERR_FILENO);
  close(kept);
  kept = -1;
}

const Binding bind_exit_output([](pybind11::module_& m) {
  Py_AtExit(&restore);
  m.def("hide_leak_reports", [] { Py_AtExit(&silence); });
});

}  // namespace
}  // namespace phantom
