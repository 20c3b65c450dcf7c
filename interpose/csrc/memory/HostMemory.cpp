#include "memory/HostMemory.h"

#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace phantom {
namespace {

// Leaked: pinned tensors are freed until the very end of the process.
struct Pinned {
  std::shared_mutex mutex;
  std::map<uintptr_t, size_t> ranges;
  PinnedStats stats;
};
Pinned& pinned() {
  static auto* instance = new Pinned();
  return *instance;
}

// Pages come from mmap directly: those that a copy without a value never writes cost nothing.
void deletePinned(void* address) {
  Pinned& p = pinned();
  size_t bytes = 0;
  {
    std::unique_lock lock(p.mutex);
    const auto it = p.ranges.find(reinterpret_cast<uintptr_t>(address));
    if (it == p.ranges.end()) return;
    bytes = it->second;
    p.ranges.erase(it);
    p.stats.allocations.decrease(1);
    p.stats.allocated_bytes.decrease(bytes);
  }
  munmap(address, bytes);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t asked) override {
    const c10::Device cpu(c10::kCPU);
    if (asked == 0) return c10::DataPtr(nullptr, cpu);
    // aten/src/ATen/core/CachingHostAllocator.h rounds every request up to a power of two.
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t bytes = std::max<size_t>(c10::llvm::PowerOf2Ceil(asked), page);
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "CUDA error: out of memory (pinned host memory, ", bytes,
                " bytes): ", std::strerror(errno));
    Pinned& p = pinned();
    std::unique_lock lock(p.mutex);
    p.ranges[reinterpret_cast<uintptr_t>(address)] = bytes;
    p.stats.allocations.increase(1);
    p.stats.allocated_bytes.increase(bytes);
    return c10::DataPtr(address, address, &deletePinned, cpu);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &deletePinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

c10::Allocator* pinnedAllocator() {
  static auto* instance = new PinnedAllocator();
  return instance;
}

bool isPinned(const void* address) {
  Pinned& p = pinned();
  std::shared_lock lock(p.mutex);
  auto it = p.ranges.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == p.ranges.begin()) return false;
  --it;
  return reinterpret_cast<uintptr_t>(address) < it->first + it->second;
}

PinnedStats pinnedStats() {
  Pinned& p = pinned();
  std::shared_lock lock(p.mutex);
  return p.stats;
}

void resetPinnedStats(bool peak, bool accumulated) {
  Pinned& p = pinned();
  std::unique_lock lock(p.mutex);
  for (auto* stat : {&p.stats.allocations, &p.stats.allocated_bytes}) {
    if (peak) stat->reset_peak();
    if (accumulated) stat->reset_accumulated();
  }
}

}  // namespace phantom
