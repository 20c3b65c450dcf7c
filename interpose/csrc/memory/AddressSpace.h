// Address space that stands for device memory: reserved, never backed by pages, faulting on any host access.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace phantom {

// A range of `bytes` (a multiple of 2 MiB) for one segment of `device`. Addresses are the same in every run.
uintptr_t reserveRange(c10::DeviceIndex device, size_t bytes);
void releaseRange(uintptr_t address);
// The device whose memory holds `address`, or -1.
c10::DeviceIndex deviceOfAddress(const void* address);
bool isVirtualAddress(const void* address);

}  // namespace phantom
