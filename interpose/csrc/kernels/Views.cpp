// Operators that only make metadata: views, resize_, set_, record_stream.
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Device.h"
#include "operators/OperatorCall.h"
#include "values/ValueVersion.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/TensorImpl.h>

namespace phantom {
namespace {

struct ViewCharge {
  HookScope scope;
  ViewCharge() { chargeHost(HostWork::kView); }
};

at::Tensor asStrided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<int64_t> offset) {
  const ViewCharge charge;
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  const ViewCharge charge;
  return at::native::view(self, size);
}

at::Tensor reshapeAlias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  const ViewCharge charge;
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);  // charged by its as_strided
}

at::Tensor viewAsReal(const at::Tensor& self) {
  const ViewCharge charge;
  return at::native::view_as_real(self);
}

at::Tensor viewAsComplex(const at::Tensor& self) {
  const ViewCharge charge;
  return at::native::view_as_complex(self);
}

// Strides of `size` in the given memory format, worked out on a meta tensor.
at::Tensor metaLike(at::IntArrayRef size, c10::ScalarType dtype, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_meta(size, dtype, format);
}

// A larger storage begins with what the smaller one held: object collectives pad their pickled bytes this way.
void growKeepingValue(const at::Tensor& self, size_t bytes) {
  const VersionPtr old = versionOf(self);
  const size_t before = self.storage().nbytes();
  growStorage(self, bytes);
  if (!old || before == 0 || bytes <= before || !fitsShadow(int64_t(bytes), self.scalar_type())) return;
  const VersionPtr grown = pendingVersion();
  setVersion(self, grown);
  whenSettled(old, [old, grown, bytes] {
    const bool unknown = old->state.load() == Version::State::kUnknown;
    settle(grown, unknown ? VersionPtr() : fullVersion(writableBytes(*old, bytes, false)));
  });
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const ViewCharge charge;
  TORCH_CHECK(!format || *format != at::MemoryFormat::Preserve, "Unsupported memory format: Preserve");
  if (self.sizes() != size) {
    const at::Tensor shape = metaLike(size, self.scalar_type(), std::nullopt);
    growKeepingValue(
        self, at::detail::computeStorageNbytes(shape.sizes(), shape.strides(), self.itemsize(), self.storage_offset()));
    self.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

void setSizes(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  if (stride.data() == nullptr || (stride.empty() && !size.empty()))
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  else self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
}

at::Tensor& setStorage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  const ViewCharge charge;
  TORCH_CHECK(source.device().is_cuda(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\".");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  setSizes(self, size, stride);
  growStorage(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), offset));
  return self;
}

at::Tensor& setWholeStorage(at::Tensor& self, at::Storage source) {
  const int64_t elements = int64_t(source.nbytes() / self.itemsize());
  return setStorage(self, std::move(source), 0, elements, {});
}

at::Tensor& setTensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return setStorage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& setEmpty(at::Tensor& self) {
  const ViewCharge charge;
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                       allocateOn(self.device().index(), 0), deviceAllocator(), true);
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  return self;
}

bool isSetTo(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

void recordStreamOf(at::Tensor& self, at::Stream stream) {
  recordStream(self.storage().data_ptr(), stream.device_index(), stream.id());
}

}  // namespace

void registerViews() {
  using c10::KernelFunction;
  auto cuda = [](const char* name, KernelFunction kernel) {
    registerKernel(name, c10::DispatchKey::CUDA, std::move(kernel));
  };
  cuda("as_strided", KernelFunction::makeFromUnboxedRuntimeFunction(&asStrided));
  cuda("view", KernelFunction::makeFromUnboxedRuntimeFunction(&view));
  cuda("_reshape_alias", KernelFunction::makeFromUnboxedRuntimeFunction(&reshapeAlias));
  cuda("unfold", KernelFunction::makeFromUnboxedRuntimeFunction(&unfold));
  cuda("view_as_real", KernelFunction::makeFromUnboxedRuntimeFunction(&viewAsReal));
  cuda("view_as_complex", KernelFunction::makeFromUnboxedRuntimeFunction(&viewAsComplex));
  cuda("resize_", KernelFunction::makeFromUnboxedRuntimeFunction(&resize));
  cuda("set_.source_Storage_storage_offset", KernelFunction::makeFromUnboxedRuntimeFunction(&setStorage));
  cuda("set_.source_Storage", KernelFunction::makeFromUnboxedRuntimeFunction(&setWholeStorage));
  cuda("set_.source_Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&setTensor));
  cuda("set_", KernelFunction::makeFromUnboxedRuntimeFunction(&setEmpty));
  cuda("is_set_to", KernelFunction::makeFromUnboxedRuntimeFunction(&isSetTo));
  cuda("record_stream", KernelFunction::makeFromUnboxedRuntimeFunction(&recordStreamOf));
}

}  // namespace phantom
