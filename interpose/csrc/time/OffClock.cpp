#include "time/OffClock.h"

#include "core/Registry.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

namespace phantom {
namespace {

thread_local int t_depth = 0;  // a tuner may tune what it runs
thread_local Picoseconds t_total_ps = 0;

}  // namespace

bool offClock() { return t_depth > 0; }

bool countOffClock(Picoseconds duration_ps) {
  if (t_depth == 0) return false;
  t_total_ps += duration_ps;
  return true;
}

namespace {
const Binding bind_off_clock([](pybind11::module_& m) {
  // Returns what was counted so far, to be given to off_clock_end().
  m.def("off_clock_begin", [] {
    ++t_depth;
    return t_total_ps;
  });
  // The time in ps of the kernels launched by this thread since off_clock_begin() returned `before_ps`.
  m.def("off_clock_end", [](Picoseconds before_ps) {
    TORCH_CHECK(t_depth > 0, "off_clock_end without off_clock_begin");
    if (--t_depth == 0) {
      const Picoseconds counted_ps = t_total_ps - before_ps;
      t_total_ps = 0;
      return counted_ps;
    }
    return t_total_ps - before_ps;
  });
});
}  // namespace

}  // namespace phantom
