#include "memory/Allocator.h"

#include "time/Clock.h"

#include "core/Registry.h"
#include "core/Config.h"
#include "core/Device.h"
#include "memory/DeviceMemory.h"
#include "time/Session.h"

#include <ATen/core/Tensor.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <malloc.h>
#include <sys/resource.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <tuple>
#include <memory>
#include <mutex>
#include <regex>

namespace phantom {
namespace {

// Leaked: storages are freed until the very end of the process.
std::array<std::atomic<DeviceMemory*>, kMaxDevices> g_devices{};
std::mutex g_devices_mutex;

// Where the CPU is the device and time is measured, the memory of the real job is taken from the same malloc at the same
// points: which pages are new, and have to be faulted in, depends on everything that was allocated and freed before.
struct HostBacked final : Allocation {
  void* pages = nullptr;
};

constexpr size_t kHostAlignment = 64;               // c10/core/alignment.h, gAlignment
constexpr size_t kFaultsMatter = size_t(16) << 10;  // below, new pages are rare
constexpr size_t kPage = 4096;

bool hostBacked() { return config().blocking_launches && config().cpu_time == CpuTime::kMeasured; }

int64_t threadCpuNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

long threadFaults() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

void charge(int64_t spent_ns) {
  if (thisThreadHasClock()) thisThreadClock().advance(Picoseconds(spent_ns) * 1000);
}

// malloc as c10::alloc_cpu calls it, and one write per page. Only what page faults cost is charged: the kernel that fills
// pages which are there already was measured doing so.
void* hostPages(size_t bytes) {
  // The backward pass has a thread of its own here; on the CPU it runs in the calling one, with its arena.
  static const bool one_arena = mallopt(M_ARENA_MAX, 1) == 1;
  (void)one_arena;
  void* pages = nullptr;
  const bool matters = bytes >= kFaultsMatter;
  const int64_t before_ns = matters ? threadCpuNs() : 0;
  const long faults = matters ? threadFaults() : 0;
  if (posix_memalign(&pages, kHostAlignment, bytes) != 0)
    return nullptr;  // the simulated memory says what does not fit
  if (!matters) return pages;
  for (size_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(pages)[at] = 0;
  if (threadFaults() > faults) charge(threadCpuNs() - before_ns);
  return pages;
}

void releasePages(void* pages, size_t bytes) {
  const int64_t before_ns = bytes >= kFaultsMatter ? threadCpuNs() : 0;
  free(pages);
  if (bytes >= kFaultsMatter) charge(threadCpuNs() - before_ns);
}

void deleteAllocation(void* context) {
  auto* allocation = static_cast<HostBacked*>(context);
  deviceMemory(allocation->device).free(allocation->block);
  if (allocation->pages != nullptr) releasePages(allocation->pages, allocation->bytes);
  delete allocation;
}

struct VirtualAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocateOn(currentDevice(), bytes); }
  // No raw interface: the context is an Allocation, not the pointer itself.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  bool is_simple_data_ptr(const c10::DataPtr& ptr) const override { return ptr.get_deleter() == &deleteAllocation; }
  void copy_data(void*, const void*, size_t) const override {}  // there is nothing to copy

  bool initialized() override { return true; }
  void emptyCache(PoolId pool) override {
    forEachDeviceMemory([&](DeviceMemory& memory) { memory.emptyCache(pool); });
  }
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    phantom::recordStream(ptr, stream.device_index(), stream.id());
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return deviceMemory(device).stats(); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { deviceMemory(device).resetAccumulated(); }
  void resetPeakStats(c10::DeviceIndex device) override { deviceMemory(device).resetPeak(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return deviceMemory(device).memoryInfo();
  }
};

VirtualAllocator& allocator() {
  static auto* instance = new VirtualAllocator();
  return *instance;
}

// CUDAAllocatorConfig's own keys: without the CUDA library nobody has claimed them, and an unknown key is an error.
void claimCudaSettings() {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  auto& known = AcceleratorAllocatorConfig::getMutableKeys();
  for (const char* key :
       {"backend", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "graph_capture_record_stream_reuse",
        "per_process_memory_fraction", "throw_on_cudamalloc_oom"}) {
    known.insert(key);
  }
}

const Installer install_allocator(10, installAllocator);

// A cuBLAS handle belongs to a thread and its workspace to (handle, stream), so the backward pass has one of its own
// (aten/src/ATen/cuda/CublasHandlePool.cpp). Threads are told apart only as far as it is the same in every run.
using WorkspaceKey = std::tuple<c10::DeviceIndex, c10::StreamId, bool>;

std::mutex g_workspaces_mutex;
auto& workspaces() {
  static auto* all = new std::map<WorkspaceKey, c10::DataPtr>();
  return *all;
}

}  // namespace

void installAllocator() {
  claimCudaSettings();
  c10::SetAllocator(c10::kCUDA, &allocator(), /*priority=*/255);
  TORCH_CHECK(c10::GetAllocator(c10::kCUDA) == &allocator(), "phantom could not replace PyTorch's CUDA allocator");
}

DeviceMemory& deviceMemory(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < config().device_count, "Invalid device argument ", int(device),
              ": did you call init?");
  DeviceMemory* memory = g_devices[device].load(std::memory_order_acquire);
  if (memory) return *memory;
  std::lock_guard<std::mutex> lock(g_devices_mutex);
  memory = g_devices[device].load(std::memory_order_relaxed);
  if (!memory) {
    memory = new DeviceMemory(device);
    g_devices[device].store(memory, std::memory_order_release);
  }
  return *memory;
}

void forEachDeviceMemory(const std::function<void(DeviceMemory&)>& visit) {
  for (auto& device : g_devices) {
    if (DeviceMemory* memory = device.load(std::memory_order_acquire)) visit(*memory);
  }
}

c10::Allocator* deviceAllocator() { return &allocator(); }

Allocation* allocationOf(const c10::Storage& storage) {
  const c10::DataPtr& ptr = storage.data_ptr();
  return ptr.get_deleter() == &deleteAllocation ? static_cast<Allocation*>(ptr.get_context()) : nullptr;
}

Allocation* allocationOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? allocationOf(tensor.storage()) : nullptr;
}

c10::DataPtr allocateOn(c10::DeviceIndex device, size_t bytes) {
  if (device < 0) device = currentDevice();
  const c10::Device where(c10::kCUDA, device);
  ensureSession();
  if (bytes == 0) {
    deviceMemory(device);  // throws for a device that is not there
    return c10::DataPtr(nullptr, where);
  }
  // PyTorch's own guard: a size that overflows int64 is a bug of the caller, not a lack of memory.
  constexpr size_t kOneExabyte = size_t(1) << 60;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kOneExabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  Block* block = deviceMemory(device).allocate(bytes, currentStream(device));
  auto* allocation = new HostBacked();
  allocation->address = reinterpret_cast<void*>(block->address);
  allocation->bytes = bytes;
  allocation->device = device;
  allocation->block = block;
  if (hostBacked()) allocation->pages = hostPages(bytes);
  return c10::DataPtr(allocation->address, allocation, &deleteAllocation, where);
}

void adoptBlock(c10::StorageImpl& storage, Block* block, c10::DeviceIndex device) {
  auto* allocation = new HostBacked();
  allocation->address = reinterpret_cast<void*>(block->address);
  allocation->bytes = storage.nbytes();
  allocation->device = device;
  allocation->block = block;
  storage.set_data_ptr_noswap(
      c10::DataPtr(allocation->address, allocation, &deleteAllocation, c10::Device(c10::kCUDA, device)));
}

bool ownsBlock(const c10::StorageImpl& storage) { return storage.data_ptr().get_deleter() == &deleteAllocation; }

void touchScratch(c10::DeviceIndex device, size_t bytes) {
  if (bytes == 0) return;
  DeviceMemory& memory = deviceMemory(device);
  memory.free(memory.allocate(bytes, currentStream(device)));
}

// aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: CUBLAS_WORKSPACE_CONFIG=":KiB:count..." if set, else
// 32 MiB on Hopper and data-center Blackwell, 8 MiB and 128 KiB elsewhere.
std::atomic<size_t> g_chosen_workspace{0};

void setCublasWorkspaceBytes(size_t bytes) { g_chosen_workspace = bytes; }

size_t cublasWorkspaceBytes() {
  if (const size_t set_by_user = g_chosen_workspace) return set_by_user;
  static const size_t chosen = [] {
    const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    if (text != nullptr) {
      size_t total = 0;
      const std::string given(text);
      static const std::regex pair(":([0-9]+):([0-9]+)");
      for (std::sregex_iterator it(given.begin(), given.end(), pair), end; it != end; ++it) {
        total += std::stoull((*it)[1]) * 1024 * std::stoull((*it)[2]);
      }
      if (total > 0) return total;
    }
    const int major = config().device.major;
    return major == 9 || major == 10 ? size_t(32) << 20 : size_t(4096 * 1024 * 2 + 16 * 1024 * 8);
  }();
  return chosen;
}

void ensureCublasWorkspace(c10::DeviceIndex device, c10::StreamId stream) {
  std::unique_lock<std::mutex> lock(g_workspaces_mutex);
  auto& all = workspaces();
  const WorkspaceKey key{device, stream, isAutogradThread()};
  if (all.count(key)) return;
  lock.unlock();  // allocating may wait for the simulator
  const c10::StreamId current = currentStream(device);
  setCurrentStream(device, stream);
  c10::DataPtr workspace = allocateOn(device, cublasWorkspaceBytes());
  setCurrentStream(device, current);
  lock.lock();
  all.emplace(key, std::move(workspace));
}

void clearCublasWorkspaces() {
  std::map<WorkspaceKey, c10::DataPtr> dropped;
  std::lock_guard<std::mutex> lock(g_workspaces_mutex);
  dropped.swap(workspaces());
}

void recordStream(const c10::DataPtr& ptr, c10::DeviceIndex device, c10::StreamId stream) {
  if (ptr.get_deleter() != &deleteAllocation) return;  // empty, or memory that is not ours
  auto* allocation = static_cast<Allocation*>(ptr.get_context());
  TORCH_CHECK(allocation->device == device, "record_stream: the tensor is on cuda:", int(allocation->device),
              " and the stream on cuda:", int(device));
  deviceMemory(device).recordStream(allocation->block, stream);
}

}  // namespace phantom
