#include "GraphCapture.h"

#include "Bindings.h"
#include "Clock.h"
#include "Device.h"
#include "DeviceMemory.h"
#include "Timeline.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace phantom {
namespace {

struct Kernel {
  Picoseconds duration_ps;
  uint32_t kernel;
};
// In the order of the launches: branches that could overlap on a GPU run one after the other.
using Graph = std::vector<Kernel>;

std::mutex g_mutex;
std::atomic<int> g_captures{0};
std::map<c10::DeviceIndex, Graph> g_open;
std::map<uint64_t, std::shared_ptr<const Graph>> g_graphs;
uint64_t g_next = 1;

}  // namespace

bool streamCapturing(c10::DeviceIndex device, c10::StreamId) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_open.count(device) > 0;
}

bool captureKernel(c10::DeviceIndex device, Picoseconds duration_ps, uint32_t kernel) {
  if (g_captures.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto open = g_open.find(device);
  if (open == g_open.end()) return false;
  open->second.push_back({duration_ps, kernel});
  return true;
}

void captureBegin(c10::DeviceIndex device) {
  TORCH_CHECK(currentStream(device) != 0,
              "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
              "the default stream.)");
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    TORCH_CHECK(g_open.emplace(device, Graph()).second, "cuda:", int(device), " is being captured already");
    ++g_captures;
  }
  deviceMemory(device).setCapturing(true);
}

uint64_t captureEnd(c10::DeviceIndex device) {
  deviceMemory(device).setCapturing(false);
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto open = g_open.find(device);
  TORCH_CHECK(open != g_open.end(), "capture_end without capture_begin");
  g_graphs[g_next] = std::make_shared<const Graph>(std::move(open->second));
  g_open.erase(open);
  --g_captures;
  return g_next++;
}

void captureReplay(uint64_t graph, c10::DeviceIndex device, c10::StreamId stream) {
  std::shared_ptr<const Graph> kernels;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    kernels = g_graphs.at(graph);
  }
  chargeHost(HostWork::kOperator);   // one launch, however many kernels
  for (const Kernel& k : *kernels) launchKernel(device, stream, k.duration_ps, k.kernel);
}

void captureDrop(uint64_t graph) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_graphs.erase(graph);
}

namespace {
const Binding binding([](pybind11::module_& m) {
  m.def("capture_begin", [] { captureBegin(currentDevice()); });
  m.def("capture_end", [] { return captureEnd(currentDevice()); });
  m.def("capture_replay", [](uint64_t graph) {
    const c10::DeviceIndex device = currentDevice();
    captureReplay(graph, device, currentStream(device));
  });
  m.def("capture_drop", &captureDrop);
});
}  // namespace

}  // namespace phantom
