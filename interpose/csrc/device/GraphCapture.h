// CUDA graphs: while a device is captured its work is kept instead of run; replay puts it on its streams at once.
#pragma once

#include "core/Time.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>

namespace phantom {

using c10::DeviceIndex;
using c10::StreamId;

bool streamCapturing(DeviceIndex device, StreamId stream);

// Each is true if the work was kept for a graph and must not happen now. Called by launchKernel and the guard.
bool captureKernel(DeviceIndex device, StreamId stream, Picoseconds duration_ps, uint32_t kernel);
bool captureWait(DeviceIndex device, StreamId stream, uint64_t captured_event);
// Anything else, such as a collective; `run` gets the stream to use at each replay.
bool captureCall(DeviceIndex device, StreamId stream, std::function<void(StreamId)> run);
// The rest of `to` comes after what `from` has been given so far, in a capture as outside of one.
void orderAfter(DeviceIndex device, StreamId to, StreamId from);
// `tensor` gets a new value: inside a capture every replay makes that unknown.
void captureWritten(const at::Tensor& tensor);
// Throws as CUDA does where the calling thread captures and the host would have to wait.
void refuseInCapture(const char* what);
// A number that stands for the event inside the graph, or 0 outside of a capture.
uint64_t captureEvent(DeviceIndex device, StreamId stream);

void captureBegin(DeviceIndex device, StreamId origin);
uint64_t captureEnd(DeviceIndex device);  // a number for the two below
void captureReplay(uint64_t graph, DeviceIndex device, StreamId stream);
void captureDrop(uint64_t graph);

}  // namespace phantom
