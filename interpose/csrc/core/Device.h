// The virtual CUDA device: guard, hooks, generators. Each registers its own Installer (core/Registry.h).
#pragma once

#include "core/Time.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace phantom {

void installGuard();
void installHooks();
void installAllocator();
void installHostMemory();

constexpr int kMaxDevices = 64;  // per node; tables by device are as long

// Device and stream of the calling thread.
c10::DeviceIndex currentDevice();
void setCurrentDevice(c10::DeviceIndex device);  // throws as CUDA does for an ordinal that is not there
c10::StreamId currentStream(c10::DeviceIndex device);
void setCurrentStream(c10::DeviceIndex device, c10::StreamId stream);
c10::StreamId streamFromPool(c10::DeviceIndex device, int priority);

// The least (numerically highest) is 0; PyTorch offers four priorities, 0 to -3 (c10/cuda/CUDAStream.h).
constexpr int kGreatestPriority = -3;
int priorityOf(c10::StreamId stream);
// cudaStream_t of a stream as an integer, unique over devices; 0 for the default stream. And back: a handle that is not
// one of ours becomes an external stream of its own.
uint64_t streamHandle(c10::DeviceIndex device, c10::StreamId stream);
c10::StreamId streamOfHandle(c10::DeviceIndex device, uint64_t handle);

// What is behind the void* of a c10::Event of type CUDA.
// elapsed_ms: resolved times only; throws as PyTorch does.
double eventElapsedMs(void* start, void* end);

}  // namespace phantom
