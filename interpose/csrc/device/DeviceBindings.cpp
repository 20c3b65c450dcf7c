// Python's view of devices, streams, events and generators; interpose/cuda/surface.py builds torch._C's names from it.
#include "core/Registry.h"
#include "memory/AddressSpace.h"
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "core/Device.h"
#include "device/Generator.h"
#include "device/GraphCapture.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/Stream.h>

namespace py = pybind11;

namespace phantom {
namespace {

c10::DeviceIndex deviceIndex(int64_t index) { return c10::DeviceIndex(index); }

void bindProperties(py::module_& m) {
  m.def("device_properties", [] {
    const DeviceProperties& d = config().device;
    py::dict out;
    out["name"] = d.name;
    out["major"] = d.major;
    out["minor"] = d.minor;
    out["total_memory"] = d.total_memory_bytes;
    out["multi_processor_count"] = d.multi_processor_count;
    out["L2_cache_size"] = d.l2_cache_bytes;
    return out;
  });
}

void bindDevices(py::module_& m) {
  m.def("device_count", [] { return config().device_count; });
  m.def("current_device", [] { return int(currentDevice()); });
  m.def("set_current_device", [](int64_t index) { setCurrentDevice(deviceIndex(index)); });
  m.def("exchange_device", [](int64_t index) -> int {
    if (index < 0) return -1;
    const int old = currentDevice();
    setCurrentDevice(deviceIndex(index));
    return old;
  });
  m.def("default_generator", [](int64_t index) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(defaultGenerator(deviceIndex(index))));
  });
  m.def("device_synchronize", [] {
    ensureSession();
    synchronize(deviceTail(currentDevice()), "torch.cuda.synchronize");
  });
  m.def("device_sleep", [](int64_t duration_ps) {
    static const uint32_t kernel = internKernel("torch.cuda._sleep", "other", "none");
    const c10::DeviceIndex d = currentDevice();
    chargeHost(HostWork::kOperator);
    launchKernel(d, currentStream(d), duration_ps, kernel);
  });
}

void bindStreams(py::module_& m) {
  m.def("current_stream_id", [](int64_t index) { return currentStream(deviceIndex(index)); });
  m.def("set_current_stream", [](int64_t index, int64_t stream) { setCurrentStream(deviceIndex(index), stream); });
  m.def("stream_from_pool", [](int64_t index, int64_t priority) {
    return streamFromPool(deviceIndex(index), int(std::max<int64_t>(-100, std::min<int64_t>(100, priority))));
  });
  m.def("stream_priority", [](int64_t stream) { return priorityOf(stream); });
  m.def("greatest_priority", [] { return kGreatestPriority; });
  m.def("stream_handle", [](int64_t index, int64_t stream) { return streamHandle(deviceIndex(index), stream); });
  m.def("current_stream_handle", [](int64_t index) {
    const c10::DeviceIndex d = index < 0 ? currentDevice() : deviceIndex(index);
    return streamHandle(d, currentStream(d));
  });
  m.def("stream_of_handle", [](int64_t index, uint64_t handle) { return streamOfHandle(deviceIndex(index), handle); });
  m.def("stream_query", [](int64_t index, int64_t stream) { return query(streamTail(deviceIndex(index), stream)); });
  m.def("stream_synchronize", [](int64_t index, int64_t stream) {
    ensureSession();
    synchronize(streamTail(deviceIndex(index), stream), "Stream.synchronize");
  });
  m.def("stream_capturing", [] {
    const c10::DeviceIndex d = currentDevice();
    return streamCapturing(d, currentStream(d));
  });
  m.def("event_elapsed_ms", [](const py::handle& start, const py::handle& end) {
    TORCH_CHECK_TYPE(THPEvent_Check(start.ptr()) && THPEvent_Check(end.ptr()), "expected two torch.cuda.Event");
    auto &a = reinterpret_cast<THPEvent*>(start.ptr())->event, &b = reinterpret_cast<THPEvent*>(end.ptr())->event;
    TORCH_CHECK_VALUE(a.flag() == c10::EventFlag::BACKEND_DEFAULT && b.flag() == c10::EventFlag::BACKEND_DEFAULT,
                      "Both events must be created with argument 'enable_timing=True'.");
    return eventElapsedMs(a.eventId(), b.eventId());
  });
}

// UntypedStorage.resize_ for storages on the device, which the CPU wheel leaves out.
void resizeStorage(const py::handle& object, int64_t bytes) {
  TORCH_CHECK(THPStorage_Check(object.ptr()), "expected a storage");
  TORCH_CHECK(bytes >= 0, "Storage size must not be negative");
  c10::StorageImpl* storage = THPStorage_Unpack(object.ptr()).unsafeGetStorageImpl();
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const auto where = storage->device();
  TORCH_CHECK(where.is_cuda(), "expected a storage on a CUDA device");
  storage->set_data_ptr_noswap(allocateOn(where.index(), size_t(bytes)));
  storage->set_nbytes(size_t(bytes));
}

// torch.UntypedStorage(bytes, device="cuda"), which the CPU wheel leaves out as well.
py::object newStorage(int64_t bytes, int64_t index) {
  TORCH_CHECK(bytes >= 0, "Storage size must not be negative");
  const c10::DeviceIndex d = index < 0 ? currentDevice() : deviceIndex(index);
  auto storage =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size_t(bytes),
                                            allocateOn(d, size_t(bytes)), deviceAllocator(), /*resizable=*/true);
  return py::reinterpret_steal<py::object>(THPStorage_Wrap(c10::Storage(std::move(storage))));
}

const Binding bind_device([](py::module_& m) {
  bindProperties(m);
  bindDevices(m);
  bindStreams(m);
  m.def("resize_storage", &resizeStorage);
  m.def("new_storage", &newStorage);
});

}  // namespace
}  // namespace phantom
