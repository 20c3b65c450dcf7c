// What the live blocks of device memory hold, by category: for the report of an OOM and, through the spool, of the peak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace phantom {

// Where a block was allocated: an allocation of the autograd thread is a gradient or a temporary of the backward pass.
enum class MemoryPhase : uint32_t { kForward = 0, kBackward = 1 };

// Called by the allocator for every block it hands out or takes back; totals are those after the change.
void memoryAllocated(int device, uint64_t address, size_t bytes, int64_t allocated_bytes, int64_t reserved_bytes);
void memoryFreed(int device, uint64_t address, size_t bytes, int64_t allocated_bytes, int64_t reserved_bytes);
// Bytes of the live blocks by category, for the report of an OOM: asks Python first to name what it knows. Takes the GIL.
std::map<std::string, int64_t> holdersAtOom(int device);
void resetMemoryLogAfterFork();

}  // namespace phantom
