// The module `interpose._C`: install(), the session, clocks, store causality, steps.
#include "core/Records.h"
#include "core/Registry.h"

#include "time/Accounting.h"
#include "time/Clock.h"
#include "time/ClockTokens.h"
#include "core/Config.h"
#include "core/Device.h"
#include "memory/MemoryLog.h"
#include "values/MoeRouting.h"
#include "time/Session.h"
#include "time/SessionPython.h"
#include "time/Spool.h"
#include "time/Timeline.h"
#include "time/UnsettledSteps.h"
#include "values/Values.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace py = pybind11;

namespace phantom {
namespace {

std::vector<void (*)(py::module_&)>& allBindings() {
  static std::vector<void (*)(py::module_&)> all;
  return all;
}
std::vector<std::pair<int, void (*)()>>& allInstallers() {
  static std::vector<std::pair<int, void (*)()>> all;
  return all;
}

template <typename T>
void take(const py::dict& from, const char* key, T& into) {
  if (from.contains(key) && !from[key].is_none()) into = from[key].cast<T>();
}

void readConfig(const py::dict& given) {
  Config& c = config();
  take(given, "device_count", c.device_count);
  TORCH_CHECK(c.device_count >= 1 && c.device_count <= 64, "device_count must be 1 to 64, not ", c.device_count);
  if (given.contains("device")) {
    const py::dict d = given["device"];
    take(d, "name", c.device.name);
    take(d, "major", c.device.major);
    take(d, "minor", c.device.minor);
    take(d, "total_memory", c.device.total_memory_bytes);
    take(d, "multi_processor_count", c.device.multi_processor_count);
    take(d, "l2_cache_bytes", c.device.l2_cache_bytes);
  }
  c.capacity_bytes = c.device.total_memory_bytes;
  take(given, "capacity_bytes", c.capacity_bytes);
  if (given.contains("host")) {
    const py::dict h = given["host"];
    take(h, "op_ps", c.host.op_ps);
    take(h, "view_ps", c.host.view_ps);
    take(h, "backward_node_ps", c.host.backward_node_ps);
    take(h, "launch_latency_ps", c.host.launch_latency_ps);
    take(h, "collective_ps", c.host.collective_ps);
    take(h, "query_ps", c.host.query_ps);
    take(h, "sync_ps", c.host.sync_ps);
    take(h, "store_ps", c.host.store_ps);
  }
  std::string cpu_time = "model", unknown = "healthy";
  take(given, "cpu_time", cpu_time);
  take(given, "unknown_values", unknown);
  TORCH_CHECK(cpu_time == "model" || cpu_time == "measured" || cpu_time == "none",
              "cpu_time must be model, measured or none, not ", cpu_time);
  TORCH_CHECK(unknown == "healthy" || unknown == "zeros" || unknown == "error",
              "unknown_values must be healthy, zeros or error, not ", unknown);
  c.cpu_time = cpu_time == "model" ? CpuTime::kModel : cpu_time == "measured" ? CpuTime::kMeasured : CpuTime::kNone;
  c.unknown_values = unknown == "healthy" ? UnknownValues::kHealthy
                     : unknown == "zeros" ? UnknownValues::kZeros
                                          : UnknownValues::kError;
  take(given, "values", c.values);
  take(given, "launch_queue", c.launch_queue);
  take(given, "blocking_launches", c.blocking_launches);
  take(given, "lazy_host_bytes", c.lazy_host_bytes);
  take(given, "seed", c.seed);
  take(given, "h2d_bytes_per_s", c.h2d_bytes_per_s);
  MoeRouting routing;
  routing.seed = c.seed;
  if (given.contains("moe_routing") && !given["moe_routing"].is_none()) {
    const py::dict r = given["moe_routing"];
    std::string mode = "balanced";
    take(r, "mode", mode);
    TORCH_CHECK(mode == "balanced" || mode == "zipf" || mode == "shares",
                "moe_routing's mode must be balanced, zipf or shares, not ", mode);
    routing.mode = mode == "balanced" ? RoutingMode::kBalanced
                   : mode == "zipf"   ? RoutingMode::kZipf
                                      : RoutingMode::kShares;
    take(r, "alpha", routing.alpha);
    take(r, "layers", routing.layers);
    take(r, "source", routing.source);
  }
  setMoeRouting(std::move(routing));
}

// First use of the device or of a process group: Python decides whether this process is a rank and opens the session.
std::mutex g_first_use_mutex;
PyObject* g_first_use = nullptr;
std::atomic<bool> g_first_use_done{false};
std::atomic<bool> g_in_bad_fork{false};  // the parent has used the device: CUDA cannot be used in this process

void afterForkInChild() {
  new (&g_first_use_mutex) std::mutex;
  g_in_bad_fork = g_in_bad_fork || g_first_use_done;
  g_first_use_done = false;
  resetClocksAfterFork();
  resetSessionAfterFork();
  resetTimelineAfterFork();
  resetAccountingAfterFork();
  resetSpoolAfterFork();
  resetMemoryLogAfterFork();
}

void install(const py::dict& given) {
  readConfig(given);
  static bool installed = false;
  if (installed) return;
  installed = true;
  pthread_atfork(nullptr, nullptr, &afterForkInChild);
  auto& installers = allInstallers();
  std::stable_sort(installers.begin(), installers.end(), [](auto& a, auto& b) { return a.first < b.first; });
  for (auto& [order, run] : installers) run();
}

void requireSession(const char* what) { TORCH_CHECK(sessionOpen(), what, " needs an open session"); }

void bindSession(py::module_& m) {
  m.def("session_open", [](int) {
    // The thread that opens the session is the rank's main clock unless another issued work before.
    openSession();
    thisThreadClock();
  });
  m.def("session_close", [] {
    closeSpool();
    closeSession();
  });
  m.def("is_open", &sessionOpen);
  m.def("next_batch", [](double timeout_s) -> py::object {
    std::optional<std::pair<std::string, uint64_t>> batch;
    {
      py::gil_scoped_release no_gil;
      batch = nextBatch(timeout_s);
    }
    if (!batch) return py::none();
    return py::make_tuple(py::bytes(batch->first), batch->second);
  });
  m.def("on_message", [](const py::bytes& records) {
    const std::string copy = records;
    py::gil_scoped_release no_gil;
    onMessage(copy);
  });
  m.def("abort", &abortSession);
  m.def("abort_error", &abortText);
  m.def("flush", &flush);
  m.def("set_first_use_callback", [](const py::function& f) {
    g_first_use = py::function(f).release().ptr();
    g_first_use_done = false;
  });
  m.def("ensure_session", &ensureSession, py::call_guard<py::gil_scoped_release>());
  m.def(
      "hello",
      [](int64_t rank, int64_t world_size, int64_t local_rank, int64_t node, int64_t pid) {
        record([&](Packer& p) {
          wire::Hello{.protocol = wire::kProtocol,
                      .rank = rank,
                      .world_size = world_size,
                      .local_rank = local_rank,
                      .node = node,
                      .pid = pid}
              .write(p);
        });
      },
      py::kw_only(), py::arg("rank"), py::arg("world_size"), py::arg("local_rank"), py::arg("node"), py::arg("pid"));
}

void bindClocks(py::module_& m) {
  m.def("clock_now_ps", [] { return thisThreadClock().now_ps.load(); });
  m.def("clock_advance_ps", [](Picoseconds by) { thisThreadClock().advance(by); });
  m.def("clock_read_ps", [] {  // a script looks at the time: costs a little, so that polling ends
    const HookScope scope;
    chargeHost(HostWork::kTimeRead);
    return thisThreadClock().now_ps.load();
  });
  m.def("has_clock", &thisThreadHasClock);
  m.def("clock_inherit", &inheritClock);
  m.def("clock_merge", [](Picoseconds at) { thisThreadClock().notBefore(at); });
  m.def("backward_begins", &setBackwardOwner);
}

void recordPost(const std::string& key) {
  Clock& clock = thisThreadClock();
  record([&](Packer& p) { wire::Post{.key = key, .clock = clock.id, .now_ps = clock.now_ps.load()}.write(p); });
}

// The calling thread counts as infinitely late until one of the others has posted the keys.
uint64_t beginWait(const std::vector<std::string>& keys, const std::string& why) {
  const uint64_t request = newRequest();
  Clock& clock = thisThreadClock();
  clock.waiting = true;
  record([&](Packer& p) {
    wire::Wait{.request = int64_t(request), .clock = clock.id, .keys = keys, .now_ps = clock.now_ps.load(), .why = why}
        .write(p);
  });
  flush();
  return request;
}

// Joining a thread is a wait for a key that the thread posts as its last act; neither costs what a store costs.
void bindThreads(py::module_& m) {
  m.def("join_begin", [](const std::string& key) { return beginWait({key}, "Thread.join at " + pythonLocation()); });
  m.def("thread_ends", [](const std::string& key) {
    recordPost(key);
    endThreadClock();
    flush();
  });
  m.def("clock_adopt", &adoptClock);
  m.def("clock_drop", &dropClock);
  // Gives that thread its clock now, at `start_ps`, so that it holds the horizon while its joiner does not.
  m.def("clock_reserve", [](uint64_t thread, Picoseconds start_ps) {
    Clock& clock = reserveClock(thread, start_ps);
    record([&](Packer& p) {
      const Picoseconds now_ps = clock.now_ps.load();
      clock.reported_ps = now_ps;
      wire::Clock{.clock = clock.id, .now_ps = now_ps}.write(p);
    });
  });
}

void bindThreadRelease(py::module_& m) {
  // Takes back the clock of a thread that has not used it; false if the thread has.
  m.def("clock_release", [](uint64_t thread) {
    const auto id = releaseClock(thread);
    if (!id) return false;
    record([&](Packer& p) { wire::ClockEnd{.clock = int64_t(*id)}.write(p); });
    return true;
  });
}

void bindStore(py::module_& m) {
  m.def("post", [](const std::string& key) {
    requireSession("post");
    chargeHost(HostWork::kStore);
    recordPost(key);
    flush();
  });
  m.def("forget", [](const std::string& key) {
    requireSession("forget");
    record([&](Packer& p) { wire::Forget{.key = key}.write(p); });
  });
  m.def("wait_begin", [](const std::vector<std::string>& keys, const std::string& why) {
    requireSession("wait_begin");
    chargeHost(HostWork::kStore);
    return beginWait(keys, why);
  });
  m.def("wait_end", [](uint64_t request) {
    // WAITED: a key that no rank posted must have come from outside the job, so the simulator need not wait for it.
    record([&](Packer& p) { wire::Waited{.request = int64_t(request)}.write(p); });
    thisThreadClock().notBefore(awaitAnswer(request));
  });
  m.def("add", [](const std::string& key, int64_t amount, int64_t result) {
    requireSession("add");
    chargeHost(HostWork::kStore);
    const uint64_t request = newRequest();
    Clock& clock = thisThreadClock();
    clock.waiting = true;
    record([&](Packer& p) {
      wire::Add{.request = int64_t(request),
                .clock = clock.id,
                .key = key,
                .amount = amount,
                .result = result,
                .now_ps = clock.now_ps.load()}
          .write(p);
    });
    thisThreadClock().notBefore(awaitAnswer(request));
  });
}

void bindSteps(py::module_& m) {
  m.def("step_end", [](int64_t index) {
    setHealthyStep(index + 1);
    if (!sessionOpen()) return;
    Tail end = deviceTail(currentDevice());
    Clock& clock = thisThreadClock();
    record([&](Packer& p) {
      wire::Step{.index = index, .tail = end, .clock = clock.id, .now_ps = clock.now_ps.load()}.write(p);
    });
    markStep(index, std::move(end));
    settleSteps(false);
  });
  m.def("finish", [] {  // everything launched has ended; the last steps are settled and STATS and BYE go out
    if (!sessionOpen()) return;
    for (int device = 0; device < config().device_count; ++device) {
      Tail tail = deviceTail(DeviceIndex(device));
      if (!abortText()) synchronize(std::move(tail), "the end of the job");
    }
    for (Tail& tail : unsettledTails()) {
      if (!abortText()) waitFor(std::move(tail), "the end of the job");
    }
    settleSteps(true);
    sayBye();
  });
  m.def("send_stats", &sendStats);  // of a rank that failed and cannot settle its last steps
  m.def("packed_stats", [] {
    Packer p;
    packStats(p);
    return py::bytes(p.buffer());
  });
  m.def("warn", &addWarning);
}

}  // namespace

Binding::Binding(void (*bind)(py::module_&)) { allBindings().push_back(bind); }
Installer::Installer(int order, void (*run)()) { allInstallers().emplace_back(order, run); }

void ensureSession() {
  if (g_first_use_done.load(std::memory_order_acquire)) return;
  // PyTorch's text (torch/cuda/__init__.py, _lazy_init).
  TORCH_CHECK(!g_in_bad_fork.load(std::memory_order_acquire),
              "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
              "'spawn' start method");
  if (g_first_use == nullptr) return;
  py::gil_scoped_acquire gil;  // the GIL is the lock: a second thread comes here only after the callback returned
  if (g_first_use_done.exchange(true)) return;
  py::reinterpret_borrow<py::function>(g_first_use)();
}

}  // namespace phantom

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace phantom;
  m.def("install", &install);
  bindSession(m);
  bindClocks(m);
  bindStore(m);
  bindThreads(m);
  bindThreadRelease(m);
  bindSteps(m);
  for (auto bind : allBindings()) bind(m);
}
