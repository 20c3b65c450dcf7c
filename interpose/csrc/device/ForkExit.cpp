// The end of a forked rank, which shares most of its memory with the process it was forked from.
//
// Its parent froze Python's collector before the fork, hence the interpreter's end does not free what it inherited, and
// binding libraries (nanobind, in Triton) list all of that as leaked. Their lists come from Py_AtExit functions, when
// no Python code can run any more. Py_AtExit functions run last in, first out: `restore` is registered before Triton
// can be imported, `silence` after the fork, so what C++ destructors say later is seen again.
//
// The static destructors of the libraries loaded before the fork free 50 MB piece by piece, which copies every page
// of it; the process's end does it at once. Those of libraries that the script loaded run, as they come before;
// what such a library marks `__attribute__((destructor))` does not, since the loader runs that last of all.
#include <Python.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/Registry.h"

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

void leave(int status, void*) {
  fcloseall();  // as exit() does: without waiting for a stream that a thread reads from
  _exit(status);
}

const Binding bind_fork_exit([](pybind11::module_& m) {
  Py_AtExit(&restore);
  m.def("hide_leak_reports", [] { Py_AtExit(&silence); });
  m.def("skip_inherited_destructors", [] { on_exit(&leave, nullptr); });
});

}  // namespace
}  // namespace phantom
