// What torch.profiler needs of CUDA where there is no CUPTI: events before and after each operator, in virtual time.
// Without these, every profiled operator prints "CUDA used in profiler but not enabled" with a stack trace.
#include "core/Config.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>

namespace phantom {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct VirtualProfilerStubs final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Device current = guard.getDevice();
    if (device) *device = current.index();
    auto made = std::make_shared<c10::Event>(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    if (cpu_ns) *cpu_ns = c10::getTime();
    made->record(guard.getStream(current));
    *event = std::move(made);
  }
  // Microseconds, as torch/csrc/profiler/stubs/cuda.cpp has them.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    auto* first = static_cast<c10::Event*>(start->get());
    auto* second = static_cast<c10::Event*>(end->get());
    first->synchronize();
    second->synchronize();
    return float(first->elapsedTime(*second) * 1000.0);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    const c10::Device current = guard.getDevice();
    for (int device = 0; device < config().device_count; ++device) {
      guard.setDevice(c10::Device(c10::kCUDA, c10::DeviceIndex(device)));
      visit(device);
    }
    guard.setDevice(current);
  }
  void synchronize() const override {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    guard.synchronizeDevice(guard.getDevice().index());
  }
};

const bool g_registered = [] {
  static VirtualProfilerStubs stubs;
  torch::profiler::impl::registerCUDAMethods(&stubs);
  return true;
}();

}  // namespace
}  // namespace phantom
