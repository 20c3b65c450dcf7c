// CUDA graphs: while a device is captured its kernels are kept instead of run; replay puts them on a stream at once.
#pragma once

#include "Time.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace phantom {

bool streamCapturing(c10::DeviceIndex device, c10::StreamId stream);
// Called by launchKernel: true if the kernel was kept for a graph and must not be put on its stream.
bool captureKernel(c10::DeviceIndex device, Picoseconds duration_ps, uint32_t kernel);

void captureBegin(c10::DeviceIndex device);
uint64_t captureEnd(c10::DeviceIndex device);        // a number for the two below
void captureReplay(uint64_t graph, c10::DeviceIndex device, c10::StreamId stream);
void captureDrop(uint64_t graph);

}  // namespace phantom
