// Uninitialised tensors. Everything else that makes tensors goes through these and then fills.
#include "time/Clock.h"
#include "core/Device.h"
#include "operators/Dispatch.h"
#include "operators/OperatorCall.h"
#include "values/ValueExecution.h"

#include <ATen/EmptyTensor.h>

namespace phantom {
namespace {

c10::Device where(std::optional<c10::Device> device) {
  if (device && device->has_index()) return *device;
  return c10::Device(c10::kCUDA, currentDevice());
}

c10::ScalarType dtypeOr(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided, "empty: layout ", *layout,
                              " is not supported on the virtual GPU");
  for (int64_t n : size) TORCH_CHECK(n >= 0, "Trying to create tensor with negative dimension ", n, ": ", size);
  const HookScope scope;
  chargeHost(HostWork::kView);
  at::Tensor out;
  if (!format || *format == at::MemoryFormat::Contiguous) {
    c10::SmallVector<int64_t, 6> strides(size.size());
    int64_t step = 1;
    for (size_t i = size.size(); i-- > 0;) {
      strides[i] = step;
      step *= std::max<int64_t>(size[i], 1);
    }
    out = makeVirtual(size, strides, dtypeOr(dtype), where(device));
  } else {
    const at::Tensor shape = at::detail::empty_meta(size, dtypeOr(dtype), format);
    out = makeVirtual(shape.sizes(), shape.strides(), dtypeOr(dtype), where(device));
  }
  markUninitialised(out);
  return out;
}

at::Tensor emptyStrided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                        std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(size.size() == stride.size(), "dimensionality of sizes (", size.size(),
              ") must match dimensionality of strides (", stride.size(), ")");
  for (int64_t n : size) TORCH_CHECK(n >= 0, "Trying to create tensor with negative dimension ", n, ": ", size);
  const HookScope scope;
  chargeHost(HostWork::kView);
  at::Tensor out = makeVirtual(size, stride, dtypeOr(dtype), where(device));
  markUninitialised(out);
  return out;
}

}  // namespace

void registerFactories() {
  using c10::KernelFunction;
  registerKernel("empty.memory_format", c10::DispatchKey::CUDA, KernelFunction::makeFromUnboxedRuntimeFunction(&empty));
  registerKernel("empty_strided", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&emptyStrided));
}

}  // namespace phantom
