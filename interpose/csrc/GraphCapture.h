// CUDA graphs: while a stream is captured its kernels are kept instead of run, and replay puts them on a stream at once.
#pragma once

#include "Time.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace phantom {

bool streamCapturing(c10::DeviceIndex device, c10::StreamId stream);
bool anyCapture();

}  // namespace phantom
