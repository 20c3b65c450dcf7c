// Work of the host that stands for a fast CPU's: priced, not executed. An optimizer whose state was offloaded to host
// memory is the case at hand. Its time moves the calling thread's clock and is reported by name; so is what it keeps in
// host memory, beside the peak of page-locked memory.
#include "time/Accounting.h"
#include "core/Registry.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "memory/HostMemory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

namespace phantom {
namespace {

struct Work {
  int64_t count = 0;
  Picoseconds total_ps = 0;
};

struct HostWorkState {
  std::mutex mutex;
  std::map<std::string, Work> work;
  std::map<std::string, int64_t> held_bytes;
};

HostWorkState& state() {
  static auto* instance = new HostWorkState();
  return *instance;
}

void hostWork(const std::string& name, Picoseconds duration_ps) {
  thisThreadClock().advance(duration_ps);
  HostWorkState& s = state();
  std::lock_guard<std::mutex> hold(s.mutex);
  Work& w = s.work[name];
  ++w.count;
  w.total_ps += duration_ps;
}

// Host memory that the job holds under this name, at its highest.
void hostHolds(const std::string& name, int64_t bytes) {
  HostWorkState& s = state();
  std::lock_guard<std::mutex> hold(s.mutex);
  int64_t& held = s.held_bytes[name];
  held = std::max(held, bytes);
}

const Binding bind_host_work([](pybind11::module_& m) {
  m.def("host_work", &hostWork, pybind11::arg("name"), pybind11::arg("duration_ps"));
  m.def("lazy_host_bytes", [] { return config().lazy_host_bytes; });
  m.def("host_holds", &hostHolds, pybind11::arg("name"), pybind11::arg("bytes"));
});

const StatsEntry host_work_entry(wire::AccountField::kHostWork, [](Packer& p) {
  HostWorkState& s = state();
  std::lock_guard<std::mutex> hold(s.mutex);
  p.map(s.work.size());
  for (const auto& [name, w] : s.work) {
    p.string(name);
    wire::Total{.count = w.count, .total_ps = w.total_ps}.write(p);
  }
});

const StatsEntry host_held_entry(wire::AccountField::kHostHeldBytes, [](Packer& p) {
  HostWorkState& s = state();
  std::lock_guard<std::mutex> hold(s.mutex);
  p.map(s.held_bytes.size() + 1);
  p.string("page-locked");
  p.integer(pinnedStats().allocated_bytes.peak);
  for (const auto& [name, bytes] : s.held_bytes) {
    p.string(name);
    p.integer(bytes);
  }
});

}  // namespace
}  // namespace phantom
