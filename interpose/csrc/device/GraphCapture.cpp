#include "device/GraphCapture.h"

#include "memory/Allocator.h"
#include "core/Registry.h"
#include "time/Clock.h"
#include "core/Device.h"
#include "memory/DeviceMemory.h"
#include "time/Timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace phantom {
namespace {

struct Step {
  enum Kind { kKernel, kRecord, kWait, kCall } kind;
  StreamId stream;
  Picoseconds duration_ps = 0;
  uint32_t kernel = 0;
  uint64_t event = 0;
  std::function<void(StreamId)> run;
};
struct Graph {
  StreamId origin = 0;  // becomes the stream of the replay; the others stay what they were
  std::vector<Step> steps;
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> written;
};

// Leaked and never locked while anything else is called.
std::mutex g_open_captures_mutex;
std::atomic<int> g_captures{0};
thread_local int t_captures = 0;  // begun by this thread
auto& g_open_captures = *new std::map<DeviceIndex, Graph>();
auto& g_graphs = *new std::map<uint64_t, std::shared_ptr<const Graph>>();
uint64_t g_next_graph = 1, g_next_event = 1;

bool keep(DeviceIndex device, Step step) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(g_open_captures_mutex);
  const auto open = g_open_captures.find(device);
  if (open == g_open_captures.end()) return false;
  open->second.steps.push_back(std::move(step));
  return true;
}

}  // namespace

bool streamCapturing(DeviceIndex device, StreamId) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(g_open_captures_mutex);
  return g_open_captures.count(device) > 0;
}

bool captureKernel(DeviceIndex device, StreamId stream, Picoseconds duration_ps, uint32_t kernel) {
  return g_captures.load(std::memory_order_relaxed) != 0 && keep(device, {Step::kKernel, stream, duration_ps, kernel});
}

bool captureWait(DeviceIndex device, StreamId stream, uint64_t captured_event) {
  return captured_event != 0 && keep(device, {Step::kWait, stream, 0, 0, captured_event});
}

bool captureCall(DeviceIndex device, StreamId stream, std::function<void(StreamId)> run) {
  return keep(device, {Step::kCall, stream, 0, 0, 0, std::move(run)});
}

void orderAfter(DeviceIndex device, StreamId to, StreamId from) {
  if (captureWait(device, to, captureEvent(device, from))) return;
  streamWait(device, to, streamTail(device, from));
}

void captureWritten(const at::Tensor& tensor) {
  if (g_captures.load(std::memory_order_relaxed) == 0 || !tensor.has_storage()) return;
  std::lock_guard<std::mutex> lock(g_open_captures_mutex);
  const auto open = g_open_captures.find(tensor.device().index());
  if (open == g_open_captures.end()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  open->second.written.emplace(
      storage, c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
}

void refuseInCapture(const char* what) {
  TORCH_CHECK(t_captures == 0, "CUDA error: operation not permitted when stream is capturing\n", what,
              " waits for the device, which a CUDA graph under capture does not allow.");
}

uint64_t captureEvent(DeviceIndex device, StreamId stream) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return 0;
  std::lock_guard<std::mutex> lock(g_open_captures_mutex);
  const auto open = g_open_captures.find(device);
  if (open == g_open_captures.end()) return 0;
  open->second.steps.push_back({Step::kRecord, stream, 0, 0, g_next_event});
  return g_next_event++;
}

void captureBegin(DeviceIndex device, StreamId origin) {
  TORCH_CHECK(
      origin != 0,
      "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
      "the default stream.)");
  {
    std::lock_guard<std::mutex> lock(g_open_captures_mutex);
    TORCH_CHECK(g_open_captures.emplace(device, Graph{origin, {}}).second, "cuda:", int(device),
                " is being captured already");
    ++g_captures;
    ++t_captures;
  }
  deviceMemory(device).setCapturing(true);
}

uint64_t captureEnd(DeviceIndex device) {
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(g_open_captures_mutex);
    const auto open = g_open_captures.find(device);
    TORCH_CHECK(open != g_open_captures.end(), "capture_end without capture_begin");
    number = g_next_graph++;
    g_graphs[number] = std::make_shared<const Graph>(std::move(open->second));
    g_open_captures.erase(open);
    --g_captures;
    t_captures = std::max(t_captures - 1, 0);
  }
  deviceMemory(device).setCapturing(false);
  return number;
}

void captureReplay(uint64_t graph, DeviceIndex device, StreamId stream) {
  std::shared_ptr<const Graph> kept;
  {
    std::lock_guard<std::mutex> lock(g_open_captures_mutex);
    kept = g_graphs.at(graph);
  }
  chargeHost(HostWork::kOperator);  // one launch, however many kernels
  std::unordered_map<uint64_t, Tail> events;
  for (const Step& step : kept->steps) {
    const StreamId where = step.stream == kept->origin ? stream : step.stream;
    switch (step.kind) {
      case Step::kKernel: launchKernel(device, where, step.duration_ps, step.kernel); break;
      case Step::kRecord: events[step.event] = streamTail(device, where); break;
      case Step::kWait: {
        const auto event = events.find(step.event);
        if (event != events.end()) streamWait(device, where, event->second);
        break;
      }
      case Step::kCall: step.run(where); break;
    }
  }
  for (const auto& [key, weak] : kept->written) {
    const auto storage = weak.lock();
    if (!storage) continue;
    Allocation* allocation = allocationOf(c10::Storage(storage));
    if (allocation != nullptr) allocation->value = {};
  }
}

void captureDrop(uint64_t graph) {
  std::lock_guard<std::mutex> lock(g_open_captures_mutex);
  g_graphs.erase(graph);
}

namespace {
const Binding bind_graph_capture([](pybind11::module_& m) {
  m.def("capture_begin", [] {
    const DeviceIndex device = currentDevice();
    captureBegin(device, currentStream(device));
  });
  m.def("capture_end", [] { return captureEnd(currentDevice()); });
  m.def("capture_replay", [](uint64_t graph) {
    const DeviceIndex device = currentDevice();
    captureReplay(graph, device, currentStream(device));
  });
  m.def("capture_drop", &captureDrop);
});
}  // namespace

}  // namespace phantom
