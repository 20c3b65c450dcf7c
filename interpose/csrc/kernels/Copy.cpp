// Copies between host and device, and reads of single numbers: where the host waits for the device.
//
// As the CUDA build does: a copy with non_blocking=False waits for its stream; with non_blocking=True it waits only if
// the host side is pageable (cudaMemcpyAsync stages it: CUDA runtime API, "API synchronization behavior").
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Records.h"
#include "core/Config.h"
#include "core/Device.h"
#include "operators/OperatorCall.h"
#include "device/GraphCapture.h"
#include "time/OffClock.h"
#include "time/Session.h"
#include "time/Timeline.h"
#include "values/Values.h"
#include "values/ValueExecution.h"
#include "values/HostValues.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>

namespace phantom {
namespace {

constexpr double kPageableShare = 0.25;                 // of the pinned rate: a staging copy by the host limits it
constexpr Picoseconds kTransferLatency_ps = 1'500'000;  // of one small DMA, as the GPU's copy engine sees it
constexpr size_t kShownToNetwork = size_t(256) << 10;   // smaller ones do not load the PCIe link enough to matter
constexpr size_t kStagedAtOnce = size_t(64) << 10;      // the driver takes a pageable buffer up to this without waiting

bool pinned(const at::Tensor& host) {
  return host.numel() > 0 && at::detail::getCUDAHooks().isPinnedPtr(host.const_data_ptr());
}

// Moves `bytes` over PCIe on the device's current stream.
void transfer(const char* direction, size_t bytes, bool is_pinned, c10::DeviceIndex device) {
  if (config().blocking_launches) return;  // the CPU's memory is the device's: `.to(device)` copies nothing there
  const c10::StreamId stream = currentStream(device);
  if (bytes >= kShownToNetwork && sessionOpen() && !offClock()) {
    const auto run = [=](StreamId on) {
      NodePtr node = newNode();
      Tail ready = occupyStream(device, on, node, direction[0] == 'h' ? "copy host to device" : "copy device to host");
      Clock& clock = thisThreadClock();
      record([&](Packer& p) {
        wire::Transfer{.node = int64_t(node->id),
                       .direction = direction,
                       .size_bytes = int64_t(bytes),
                       .pinned = is_pinned,
                       .ready = ready,
                       .clock = clock.id,
                       .now_ps = clock.now_ps.load()}
            .write(p);
      });
    };
    if (!captureCall(device, stream, run)) run(stream);
    return;
  }
  static const uint32_t to_device = internKernel("copy host to device", "copy", "predicted");
  static const uint32_t to_host = internKernel("copy device to host", "copy", "predicted");
  const double rate = config().h2d_bytes_per_s * (is_pinned ? 1.0 : kPageableShare);
  const auto duration_ps = kTransferLatency_ps + Picoseconds(double(bytes) / rate * 1e12);
  launchKernel(device, stream, duration_ps, direction[0] == 'h' ? to_device : to_host);
}

// The device's side of a copy that also converts or gathers is a kernel of its own.
void convertOnDevice(const at::Tensor& on_device, const at::Tensor& on_host) {
  if (on_device.scalar_type() == on_host.scalar_type() && on_device.is_non_overlapping_and_dense()) return;
  launchNamed("aten::copy_", {on_device, on_device}, {on_device}, on_device.device());
}

void hostToDevice(torch::jit::Stack& stack, const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  static const OperatorInfo& info = operatorInfo(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  Call call(info, stack);
  static const EntryPtr entry = c10::make_intrusive<MetadataEntry>();
  ValueWork values(call, *entry);
  chargeHost(HostWork::kOperator);
  const bool is_pinned = pinned(source);
  const size_t bytes = size_t(self.numel()) * source.itemsize();
  if (bytes > 0) {
    transfer("h2d", bytes, is_pinned, self.device().index());
    convertOnDevice(self, source);
    const bool waits = !non_blocking || (!is_pinned && bytes > kStagedAtOnce);
    if (waits)
      synchronize(streamTail(self.device().index(), currentStream(self.device().index())), "copy from the host");
  }
  values.finish({});
}

void deviceToHost(const at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  chargeHost(HostWork::kOperator);
  const c10::DeviceIndex device = source.device().index();
  const size_t bytes = size_t(self.numel()) * self.itemsize();
  if (bytes == 0) return;
  const bool is_pinned = pinned(self);
  convertOnDevice(source, self);
  transfer("d2h", bytes, is_pinned, device);
  if (non_blocking && is_pinned) {
    fillHostLater(self, source, device);
  } else {
    synchronize(streamTail(device, currentStream(device)), "copy to the host");
    settleHostCopies();
    fillHost(self, source, "copy to the host");
  }
}

// Runs on the source's stream; both streams wait for each other, as the CUDA build's peer copy does.
void deviceToDevice(torch::jit::Stack& stack, const at::Tensor& self, const at::Tensor& source) {
  const c10::Device from = source.device(), to = self.device();
  if (from != to)
    streamWait(from.index(), currentStream(from.index()), streamTail(to.index(), currentStream(to.index())));
  static const OperatorInfo& info = operatorInfo(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  runVirtual(info, stack);
  if (from != to)
    streamWait(to.index(), currentStream(to.index()), streamTail(from.index(), currentStream(from.index())));
}

class CopyKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const HookScope scope;
    const size_t base = stack->size() - 3;
    const at::Tensor self = (*stack)[base].toTensor();
    const at::Tensor source = (*stack)[base + 1].toTensor();
    const bool non_blocking = (*stack)[base + 2].toBool();
    if (self.unsafeGetTensorImpl() != source.unsafeGetTensorImpl()) {
      TORCH_CHECK(at::is_expandable_to(source.sizes(), self.sizes()), "The size of tensor a ", self.sizes(),
                  " must match the size of tensor b ", source.sizes(), " (copy_ broadcasts only the source)");
      TORCH_CHECK(!source.is_meta() && !self.is_meta(), "Cannot copy between a meta tensor and the GPU; no data!");
      if (self.is_cuda() && source.is_cuda()) {
        deviceToDevice(*stack, self, source);
        return;
      }
      if (self.is_cuda()) hostToDevice(*stack, self, source, non_blocking);
      else deviceToHost(self, source, non_blocking);
    }
    torch::jit::drop(*stack, 3);
    stack->emplace_back(self);
  }
};

at::Scalar localScalar(const at::Tensor& self) {
  const HookScope scope;
  chargeHost(HostWork::kOperator);
  const c10::DeviceIndex device = self.device().index();
  transfer("d2h", self.itemsize(), true, device);
  synchronize(streamTail(device, currentStream(device)), "item()");
  settleHostCopies();
  std::optional<at::Tensor> value = awaitValue(self);
  countGuessedRead(self, "item");
  if (!value) value = healthyValue(self, "item");
  return value->item();
}

}  // namespace

void registerCopies() {
  using c10::KernelFunction;
  registerKernel("copy_", c10::DispatchKey::CUDA, KernelFunction::makeFromBoxedFunctor(std::make_unique<CopyKernel>()));
  registerKernel("_local_scalar_dense", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&localScalar));
}

}  // namespace phantom
