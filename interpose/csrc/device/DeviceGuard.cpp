// Current device and streams per thread, and events: snapshots of stream tails in virtual time.
#include "core/Registry.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "core/Device.h"
#include "memory/Allocator.h"
#include "device/GraphCapture.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

namespace phantom {
namespace {

// c10/cuda/CUDAStream.cpp: 32 streams per device and priority, handed out in turn.
constexpr int kStreamsPerPool = 32;
constexpr int kPriorities = 1 - kGreatestPriority;
// Handles of pool streams: above user-space addresses, so that no external stream can be mistaken for one.
constexpr uint64_t kHandleMark = uint64_t(0x7a) << 48;

thread_local c10::DeviceIndex t_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> t_streams{};
std::array<std::array<std::atomic<uint32_t>, kPriorities>, kMaxDevices> g_next_in_pool{};

// StreamId as in c10/cuda/CUDAStream.cpp: index << 5 | (1 - priority) << 1 | 1; 0 is the default stream.
c10::StreamId makeStreamId(int priority, uint32_t index) {
  return (c10::StreamId(index) << 5) | (c10::StreamId(1 - priority) << 1) | 1;
}

c10::DeviceIndex checked(c10::DeviceIndex device) {
  if (device < 0) return t_device;
  TORCH_CHECK(device < config().device_count, "CUDA error: invalid device ordinal\nGPU device ", int(device),
              " asked for, but the simulated node has ", config().device_count,
              " (cuda:0 to cuda:", config().device_count - 1, ").");
  return device;
}

struct EventState {
  std::mutex mutex;
  Tail tail;
  uint64_t captured = 0;  // its number inside the CUDA graph it was recorded in
  c10::DeviceIndex device = 0;
  bool timing = false;
};

Tail tailOf(void* event) {
  auto* state = static_cast<EventState*>(event);
  std::lock_guard<std::mutex> lock(state->mutex);
  state->tail.simplify();
  return state->tail;
}

uint64_t capturedNumber(void* event) {
  auto* state = static_cast<EventState*>(event);
  std::lock_guard<std::mutex> lock(state->mutex);
  return state->captured;
}

struct VirtualGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old(c10::kCUDA, t_device);
    if (device.index() != t_device) setCurrentDevice(device.index());
    return old;
  }
  c10::Device getDevice() const override { return c10::Device(c10::kCUDA, t_device); }
  void setDevice(c10::Device device) const override { setCurrentDevice(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kMaxDevices) t_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = checked(device.index());
    return stream(index, t_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(checked(device.index()), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? kGreatestPriority : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const auto index = checked(device.index());
    return stream(index, streamFromPool(index, priority));
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto index = checked(next.device_index());
    const auto old = stream(index, t_streams[index]);
    t_streams[index] = next.id();
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    return reinterpret_cast<void*>(streamHandle(s.device_index(), s.id()));
  }
  bool isStreamCapturing(const c10::Stream& s) const override { return streamCapturing(s.device_index(), s.id()); }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == s.device_index(), "Event device index ", int(device),
                " does not match recording stream's device index ", int(s.device_index()), ".");
    ensureSession();
    if (!*event) {
      auto made = std::make_unique<EventState>();
      made->device = s.device_index();
      made->timing = flag == c10::EventFlag::BACKEND_DEFAULT;
      *event = made.release();
    }
    chargeHost(HostWork::kQuery);
    Tail tail = streamTail(s.device_index(), s.id());
    // On an idle stream the event ends when it is issued.
    tail.notBefore(thisThreadClock().now_ps.load(std::memory_order_relaxed));
    const uint64_t captured = captureEvent(s.device_index(), s.id());
    auto* state = static_cast<EventState*>(*event);
    std::lock_guard<std::mutex> lock(state->mutex);
    state->tail = std::move(tail);
    state->captured = captured;
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event) return;
    chargeHost(HostWork::kQuery);
    if (captureWait(s.device_index(), s.id(), capturedNumber(event))) return;
    streamWait(s.device_index(), s.id(), tailOf(event));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    return query(tailOf(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventState*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event) synchronize(tailOf(event), "Event.synchronize");
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return eventElapsedMs(start, end);
  }

  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(config().device_count); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return c10::DeviceCapability(); }
  bool queryStream(const c10::Stream& s) const override { return query(streamTail(s.device_index(), s.id())); }
  void synchronizeStream(const c10::Stream& s) const override {
    ensureSession();
    synchronize(streamTail(s.device_index(), s.id()), "Stream.synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    ensureSession();
    synchronize(deviceTail(checked(device)), "torch.cuda.synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& s) const override {
    recordStream(ptr, s.device_index(), s.id());
  }

 private:
  static c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, device), id);
  }
};

const Installer install_guard(20, installGuard);

}  // namespace

void installGuard() {
  TORCH_CHECK(config().device_count <= kMaxDevices, "phantom simulates at most ", kMaxDevices, " GPUs per node, not ",
              config().device_count);
  static auto* guard = new VirtualGuard();  // the registry does not own
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)].store(guard);
}

c10::DeviceIndex currentDevice() { return t_device; }
void setCurrentDevice(c10::DeviceIndex device) { t_device = checked(device); }
c10::StreamId currentStream(c10::DeviceIndex device) { return t_streams[checked(device)]; }
void setCurrentStream(c10::DeviceIndex device, c10::StreamId stream) { t_streams[checked(device)] = stream; }

c10::StreamId streamFromPool(c10::DeviceIndex device, int priority) {
  const int clamped = std::max(kGreatestPriority, std::min(0, priority));
  const uint32_t turn = g_next_in_pool[checked(device)][-clamped].fetch_add(1, std::memory_order_relaxed);
  return makeStreamId(clamped, turn % kStreamsPerPool);
}

int priorityOf(c10::StreamId stream) {
  const bool from_pool = (stream & 1) && (stream >> 5) < kStreamsPerPool;
  return from_pool ? 1 - int((stream >> 1) & 0xf) : 0;
}

uint64_t streamHandle(c10::DeviceIndex device, c10::StreamId stream) {
  if (stream == 0) return 0;
  if ((stream & 1) == 0) return uint64_t(stream);  // external: the id is the handle
  return kHandleMark | uint64_t(device) << 16 | uint64_t(stream) << 24;
}

c10::StreamId streamOfHandle(c10::DeviceIndex device, uint64_t handle) {
  if (handle <= 2) return 0;  // cudaStreamLegacy, cudaStreamPerThread
  if ((handle & kHandleMark) == kHandleMark) {
    TORCH_CHECK(c10::DeviceIndex((handle >> 16) & 0xff) == device, "stream ", handle, " belongs to another device");
    return c10::StreamId((handle & ~kHandleMark) >> 24);
  }
  return c10::StreamId(handle & ~uint64_t(1));
}

double eventElapsedMs(void* start, void* end) {
  TORCH_CHECK_VALUE(start && end, "Both events must be recorded before calculating elapsed time.");
  const auto *a = static_cast<EventState*>(start), *b = static_cast<EventState*>(end);
  TORCH_CHECK_VALUE(a->timing && b->timing, "Both events must be created with argument 'enable_timing=True'.");
  // Always through query(), which charges host time, so that the clock does not depend on what has arrived already.
  for (void* event : {start, end}) {
    TORCH_CHECK(query(tailOf(event)),
                "CUDA error: device not ready\nAn event of elapsed_time has not been reached yet; "
                "synchronize first.");
    // Its end lies before the clock, so that the simulator has sent it or is about to.
    awaitCondition([&] { return tailOf(event).known(); });
  }
  return double(tailOf(end).bound_ps - tailOf(start).bound_ps) / 1e9;
}

}  // namespace phantom
