// Host memory: page-locked allocations, and large CPU initialisations that leave their pages untouched.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>

namespace phantom {

// Counterpart of the caching host allocator: sizes rounded up to a power of two, tensors are ordinary memory.
c10::Allocator* pinnedAllocator();
bool isPinned(const void* address);

struct PinnedStats {
  c10::CachingAllocator::Stat allocations, allocated_bytes;
};
PinnedStats pinnedStats();
void resetPinnedStats(bool peak, bool accumulated);

// Bytes of CPU tensors whose initialisation was left out so far (config().lazy_host_bytes).
uint64_t hostLazyBytes();

}  // namespace phantom
