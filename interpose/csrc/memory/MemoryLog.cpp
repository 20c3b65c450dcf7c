#include "memory/MemoryLog.h"

#include "memory/Allocator.h"
#include "core/Registry.h"
#include "time/Clock.h"
#include "time/Spool.h"

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace py = pybind11;

namespace phantom {
namespace {

struct LiveBlock {
  int64_t bytes = 0;
  uint32_t device = 0;
  int64_t step = 0;
  uint32_t category = 0;  // index into MemoryLogState::categories; 0: not told
};

struct MemoryLogState {
  std::mutex mutex;
  std::unordered_map<uint64_t, LiveBlock> live;
  std::vector<std::string> categories{""};
};

MemoryLogState* g_memory_log = new MemoryLogState;

uint32_t categoryIndex(MemoryLogState& state, const std::string& name) {
  for (size_t i = 0; i < state.categories.size(); ++i) {
    if (state.categories[i] == name) return uint32_t(i);
  }
  state.categories.push_back(name);
  return uint32_t(state.categories.size() - 1);
}

// What a block that nobody named holds, as far as can be told while it lives. Every parameter's gradient has just been
// named, so that what else the backward pass allocated is a temporary of it: an activation's gradient, say.
const char* guess(const LiveBlock& block) { return block.step == runningStep() ? "activations" : "other"; }

Picoseconds now() { return thisThreadHasClock() ? thisThreadClock().now_ps.load(std::memory_order_relaxed) : 0; }

}  // namespace

void memoryAllocated(int device, uint64_t address, size_t bytes, int64_t allocated_bytes, int64_t reserved_bytes) {
  MemoryLogState& state = *g_memory_log;
  const MemoryPhase phase = isAutogradThread() ? MemoryPhase::kBackward : MemoryPhase::kForward;
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    state.live[address] = {int64_t(bytes), uint32_t(device), runningStep(), 0};
  }
  if (spoolKeepsMemory()) {
    spoolMemory(now(), uint32_t(device), address, int64_t(bytes), allocated_bytes, reserved_bytes, uint32_t(phase));
  }
}

void memoryFreed(int device, uint64_t address, size_t bytes, int64_t allocated_bytes, int64_t reserved_bytes) {
  MemoryLogState& state = *g_memory_log;
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    state.live.erase(address);
  }
  if (spoolKeepsMemory()) {
    const auto phase = uint32_t(isAutogradThread() ? MemoryPhase::kBackward : MemoryPhase::kForward);
    spoolMemory(now(), uint32_t(device), address, -int64_t(bytes), allocated_bytes, reserved_bytes, phase);
  }
}

void resetMemoryLogAfterFork() {
  MemoryLogState* old = g_memory_log;
  g_memory_log = new MemoryLogState;
  g_memory_log->live = old->live;  // the child's copies of the parent's tensors
  g_memory_log->categories = old->categories;
}

namespace {

// The virtual storages of `tensors` hold `category` ("parameters", "gradients", "optimizer state") from now on.
void tagMemory(const std::string& category, const std::vector<at::Tensor>& tensors) {
  MemoryLogState& state = *g_memory_log;
  std::vector<uint64_t> addresses;
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    const uint32_t index = categoryIndex(state, category);
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      const Allocation* allocation = allocationOf(tensor);
      if (allocation == nullptr || allocation->address == nullptr) continue;
      const auto address = reinterpret_cast<uint64_t>(allocation->address);
      auto found = state.live.find(address);
      if (found == state.live.end() || found->second.category == index) continue;
      found->second.category = index;
      addresses.push_back(address);
    }
  }
  if (spoolKeepsMemory()) spoolTag(category, addresses);
}

std::map<std::string, int64_t> liveByCategory(int device) {
  MemoryLogState& state = *g_memory_log;
  std::lock_guard<std::mutex> hold(state.mutex);
  std::map<std::string, int64_t> total;
  for (const auto& [address, block] : state.live) {
    if (int(block.device) != device) continue;
    total[block.category != 0 ? state.categories[block.category] : guess(block)] += block.bytes;
  }
  return total;
}

PyObject* g_name_everything = nullptr;

const Binding bind_memory_log([](py::module_& m) {
  m.def("set_memory_namer", [](const py::function& f) { g_name_everything = py::function(f).release().ptr(); });
  m.def("tag_memory", &tagMemory);
});

}  // namespace

std::map<std::string, int64_t> holdersAtOom(int device) {
  if (g_name_everything != nullptr && Py_IsInitialized()) {
    py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::function>(g_name_everything)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("naming the blocks of device memory");  // the OOM itself is what matters
    }
  }
  return liveByCategory(device);
}

}  // namespace phantom
