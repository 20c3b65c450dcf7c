// Python's view of the allocator: statistics, snapshots, pools, raw allocations, pinned memory.
#include "core/Registry.h"
#include "memory/AddressSpace.h"
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "core/Device.h"
#include "memory/DeviceMemory.h"
#include "memory/HostMemory.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Storage.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

namespace py = pybind11;

namespace phantom {
namespace {

using c10::CachingAllocator::Stat;

c10::DeviceIndex deviceOrCurrent(int64_t index) { return index < 0 ? currentDevice() : c10::DeviceIndex(index); }

py::dict asDict(const Stat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

template <typename Array>
py::dict asDict(const Array& stats, int) {
  py::dict out;
  static const char* const names[] = {"all", "small_pool", "large_pool"};
  for (size_t i = 0; i < 3; ++i) out[names[i]] = asDict(stats[i]);
  return out;
}

// Keys as THCPModule_memoryStats gives them (torch/csrc/cuda/Module.cpp).
py::dict memoryStats(int64_t index) {
  const DeviceStats s = deviceMemory(deviceOrCurrent(index)).stats();
  py::dict out;
  out["num_alloc_retries"] = s.num_alloc_retries;
  out["num_ooms"] = s.num_ooms;
  out["max_split_size"] = s.max_split_size;
  out["num_sync_all_streams"] = s.num_sync_all_streams;
  out["num_device_alloc"] = s.num_device_alloc;
  out["num_device_free"] = s.num_device_free;
  out["num_oom_rejections"] = 0;
  out["allocation"] = asDict(s.allocation, 0);
  out["segment"] = asDict(s.segment, 0);
  out["active"] = asDict(s.active, 0);
  out["inactive_split"] = asDict(s.inactive_split, 0);
  out["allocated_bytes"] = asDict(s.allocated_bytes, 0);
  out["reserved_bytes"] = asDict(s.reserved_bytes, 0);
  out["active_bytes"] = asDict(s.active_bytes, 0);
  out["inactive_split_bytes"] = asDict(s.inactive_split_bytes, 0);
  out["requested_bytes"] = asDict(s.requested_bytes, 0);
  out["oversize_allocations"] = asDict(s.oversize_allocations);
  out["oversize_segments"] = asDict(s.oversize_segments);
  return out;
}

py::dict segmentDict(const Segment& segment, c10::DeviceIndex index) {
  const Block& first = segment.blocks.front();
  py::list blocks;
  size_t total = 0, allocated = 0, active = 0, requested = 0;
  for (const Block& b : segment.blocks) {
    const bool is_active = b.allocated || b.pending_uses > 0 || !b.used_on.empty();
    py::dict block;
    block["address"] = b.address;
    block["size"] = b.size;
    block["requested_size"] = is_active ? b.requested : 0;
    block["state"] = b.allocated ? "active_allocated" : is_active ? "active_pending_free" : "inactive";
    block["frames"] = py::list();
    blocks.append(block);
    total += b.size;
    if (b.allocated) allocated += b.size;
    if (is_active) {
      active += b.size;
      requested += b.requested;
    }
  }
  py::dict out;
  out["device"] = int(index);
  out["address"] = first.address;
  out["total_size"] = total;
  out["allocated_size"] = allocated;
  out["active_size"] = active;
  out["requested_size"] = requested;
  out["stream"] = streamHandle(index, first.stream);
  out["segment_type"] = segment.small ? "small" : "large";
  out["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
  out["is_expandable"] = first.arena != nullptr;
  out["frames"] = py::list();
  out["blocks"] = blocks;
  return out;
}

py::dict memorySnapshot() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  py::list segments, traces;
  for (int i = 0; i < config().device_count; ++i) {
    DeviceMemory& memory = deviceMemory(c10::DeviceIndex(i));
    for (const Segment& segment : memory.segments()) segments.append(segmentDict(segment, c10::DeviceIndex(i)));
    py::list trace;
    for (const TraceEvent& event : memory.history()) {
      py::dict entry;
      const bool oom = std::string_view(event.action) == "oom";
      entry["action"] = event.action;
      entry[oom ? "device_free" : "addr"] = event.address;
      entry["size"] = event.size;
      entry["stream"] = streamHandle(c10::DeviceIndex(i), event.stream);
      entry["time_us"] = event.time_ps / 1'000'000;
      entry["frames"] = py::list();
      trace.append(entry);
    }
    traces.append(trace);
  }
  py::dict settings;
  settings["PYTORCH_CUDA_ALLOC_CONF"] = c10::CachingAllocator::getAllocatorSettings();
  settings["max_split_size"] = memoryStats(0)["max_split_size"];
  settings["garbage_collection_threshold"] = AcceleratorAllocatorConfig::garbage_collection_threshold();
  settings["expandable_segments"] = AcceleratorAllocatorConfig::use_expandable_segments();
  settings["pinned_num_register_threads"] = 1;
  settings["release_lock_on_malloc"] = false;
  settings["pinned_use_host_register"] = false;
  settings["roundup_power2_divisions"] = py::dict();
  py::dict out;
  out["segments"] = segments;
  out["device_traces"] = traces;
  out["external_annotations"] = py::list();
  out["allocator_settings"] = settings;
  return out;
}

void bindStats(py::module_& m) {
  m.def("memory_stats", &memoryStats);
  m.def("memory_snapshot", &memorySnapshot);
  m.def("reset_peak_memory_stats", [](int64_t index) { deviceMemory(deviceOrCurrent(index)).resetPeak(); });
  m.def("reset_accumulated_memory_stats",
        [](int64_t index) { deviceMemory(deviceOrCurrent(index)).resetAccumulated(); });
  m.def("mem_get_info", [](int64_t index) { return deviceMemory(deviceOrCurrent(index)).memoryInfo(); });
  m.def("set_memory_fraction",
        [](double fraction, int64_t index) { deviceMemory(deviceOrCurrent(index)).setFraction(fraction); });
  m.def("memory_fraction", [](int64_t index) { return deviceMemory(deviceOrCurrent(index)).fraction(); });
  m.def(
      "empty_cache",
      [](PoolId pool) {
        py::gil_scoped_release no_gil;
        forEachDeviceMemory([&](DeviceMemory& memory) { memory.emptyCache(pool); });
      },
      py::arg("pool") = PoolId{0, 0});
  m.def("keep_memory_history", [](bool on, size_t max_entries) {
    for (int i = 0; i < config().device_count; ++i) deviceMemory(c10::DeviceIndex(i)).keepHistory(on, max_entries);
  });
  m.def("attach_oom_observer", [](const py::function& callback) {
    PyObject* kept = py::function(callback).release().ptr();  // for the rest of the process
    for (int i = 0; i < config().device_count; ++i) {
      deviceMemory(c10::DeviceIndex(i)).addOomObserver([kept](int64_t d, int64_t alloc, int64_t total, int64_t free) {
        py::gil_scoped_acquire gil;
        py::reinterpret_borrow<py::function>(kept)(d, alloc, total, free);
      });
    }
  });
  m.def("pinned_stats", [] {
    const PinnedStats s = pinnedStats();
    py::dict out, no_time;
    out["num_host_alloc"] = s.allocations.allocated;
    out["num_host_free"] = s.allocations.freed;
    out["allocations"] = asDict(s.allocations);
    out["active_requests"] = asDict(s.allocations);
    out["allocated_bytes"] = asDict(s.allocated_bytes);
    out["active_bytes"] = asDict(s.allocated_bytes);
    for (const char* key : {"total", "max", "min", "count", "avg"}) no_time[key] = 0;
    out["host_alloc_time"] = no_time;
    out["host_free_time"] = no_time;
    return out;
  });
  m.def("reset_pinned_stats", &resetPinnedStats);
  m.def("host_lazy_bytes", &hostLazyBytes);
}

std::mutex g_raw_mutex;
std::map<uint64_t, c10::DataPtr>& rawAllocations() {
  static auto* all = new std::map<uint64_t, c10::DataPtr>();
  return *all;
}

void bindRaw(py::module_& m) {
  m.def("raw_alloc", [](size_t bytes, uint64_t handle) {
    const c10::DeviceIndex d = currentDevice();
    const c10::StreamId current = currentStream(d);
    setCurrentStream(d, streamOfHandle(d, handle));
    c10::DataPtr data;
    try {
      data = allocateOn(d, bytes);
    } catch (...) {
      setCurrentStream(d, current);
      throw;
    }
    setCurrentStream(d, current);
    const auto address = reinterpret_cast<uint64_t>(data.get());
    if (address != 0) {
      std::lock_guard<std::mutex> lock(g_raw_mutex);
      rawAllocations()[address] = std::move(data);
    }
    return address;
  });
  m.def("raw_delete", [](uint64_t address) {
    c10::DataPtr dropped;
    std::lock_guard<std::mutex> lock(g_raw_mutex);
    const auto it = rawAllocations().find(address);
    if (it == rawAllocations().end() && address != 0) {
      // A block of a CUDA graph's pool whose storage died while it did not own it.
      const c10::DeviceIndex d = deviceOfAddress(reinterpret_cast<void*>(address));
      Block* block = d >= 0 ? deviceMemory(d).blockAt(address) : nullptr;
      if (block != nullptr) {
        deviceMemory(d).free(block);
        return;
      }
    }
    TORCH_CHECK(address == 0 || it != rawAllocations().end(), "invalid device pointer: ", address);
    if (it == rawAllocations().end()) return;
    dropped = std::move(it->second);
    rawAllocations().erase(it);
  });
  m.def("record_stream", [](const py::handle& storage, int64_t index, int64_t stream) {
    TORCH_CHECK(THPStorage_Check(storage.ptr()), "expected a storage");
    recordStream(THPStorage_Unpack(storage.ptr()).data_ptr(), deviceOrCurrent(index), stream);
  });
  m.def("cublas_workspace_bytes", &cublasWorkspaceBytes);
  m.def("set_cublas_workspace_bytes", &setCublasWorkspaceBytes);
  m.def("clear_cublas_workspaces", &clearCublasWorkspaces);
  m.def("touch_scratch", [](int64_t index, size_t bytes) { touchScratch(deviceOrCurrent(index), bytes); });
  m.def("ensure_cublas_workspace", [](int64_t index) {
    const c10::DeviceIndex d = deviceOrCurrent(index);
    ensureCublasWorkspace(d, currentStream(d));
  });
}

void bindPools(py::module_& m) {
  m.def("new_pool_id", [](bool from_user) {
    static std::atomic<uint64_t> captures{1}, users{1};
    return from_user ? PoolId{0, users++} : PoolId{captures++, 0};
  });
  m.def("ensure_pool", [](int64_t index, PoolId pool) { deviceMemory(deviceOrCurrent(index)).ensurePool(pool); });
  m.def("pool_users", [](int64_t index, PoolId pool) { return deviceMemory(deviceOrCurrent(index)).poolUsers(pool); });
  m.def("begin_allocate_to_pool", [](int64_t index, PoolId pool) {
    deviceMemory(deviceOrCurrent(index)).beginAllocateToPool(pool, [](c10::StreamId) { return true; });
  });
  m.def("begin_allocate_thread_to_pool", [](int64_t index, PoolId pool) {
    const auto owner = std::this_thread::get_id();
    deviceMemory(deviceOrCurrent(index)).beginAllocateToPool(pool, [owner](c10::StreamId) {
      return std::this_thread::get_id() == owner;
    });
  });
  m.def("begin_allocate_stream_to_pool", [](int64_t index, PoolId pool) {
    const c10::StreamId stream = currentStream(deviceOrCurrent(index));
    deviceMemory(deviceOrCurrent(index)).beginAllocateToPool(pool, [stream](c10::StreamId s) { return s == stream; });
  });
  m.def("end_allocate_to_pool",
        [](int64_t index, PoolId pool) { deviceMemory(deviceOrCurrent(index)).endAllocateToPool(pool); });
  m.def("release_pool", [](int64_t index, PoolId pool) { deviceMemory(deviceOrCurrent(index)).releasePool(pool); });
}

const Binding bind_memory([](py::module_& m) {
  bindStats(m);
  bindRaw(m);
  bindPools(m);
});

}  // namespace
}  // namespace phantom
