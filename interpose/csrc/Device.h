// The virtual CUDA device: guard, hooks, generators. install() of each is called once by Bindings.cpp.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace phantom {

void installGuard();
void installHooks();
void installAllocator();

c10::DeviceIndex currentDevice();                       // of the calling thread
void setCurrentDevice(c10::DeviceIndex device);
c10::StreamId currentStream(c10::DeviceIndex device);   // of the calling thread
void setCurrentStream(c10::DeviceIndex device, c10::StreamId stream);
c10::StreamId streamFromPool(c10::DeviceIndex device, int priority);

}  // namespace phantom
