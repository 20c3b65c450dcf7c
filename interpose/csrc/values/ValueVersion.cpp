#include "values/ValueVersion.h"

#include "memory/Allocator.h"
#include "device/GraphCapture.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <cstring>
#include <deque>

namespace phantom {
namespace {

constexpr int64_t kIntegerShadowBytes = int64_t(16) << 20;
constexpr int64_t kRoutedShadowBytes = int64_t(256) << 20;
constexpr int64_t kFloatShadowBytes = 1024;

bool allZero(const Version& version) {
  for (uint8_t byte : version.element) {
    if (byte != 0) return false;
  }
  return true;
}

at::Tensor tensorOver(c10::Storage storage, c10::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                      int64_t offset) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(dtype));
  out.unsafeGetTensorImpl()->set_storage_offset(offset);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return out;
}

}  // namespace

VersionPtr versionOf(const at::Tensor& tensor) {
  const Allocation* allocation = allocationOf(tensor);
  if (allocation == nullptr || !allocation->value) return VersionPtr();
  return VersionPtr::reclaim_copy(static_cast<Version*>(allocation->value.get()));
}

void setVersion(const at::Tensor& tensor, VersionPtr version) {
  Allocation* allocation = allocationOf(tensor);
  if (allocation == nullptr) return;
  captureWritten(tensor);
  allocation->value = std::move(version);
}

bool isKnownOrPending(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const Allocation* allocation = allocationOf(tensor);
  if (allocation == nullptr || !allocation->value) return false;
  return static_cast<const Version*>(allocation->value.get())->state.load(std::memory_order_acquire) !=
         Version::State::kUnknown;
}

ValueSource sourceOf(const at::Tensor& tensor) {
  ValueSource source;
  source.dtype = tensor.scalar_type();
  source.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  if (!tensor.is_cuda()) {
    source.host = tensor;
    return source;
  }
  source.strides.assign(tensor.strides().begin(), tensor.strides().end());
  source.offset = tensor.storage_offset();
  source.conjugate = tensor.is_conj();
  source.negative = tensor.is_neg();
  source.version = versionOf(tensor);
  return source;
}

std::optional<at::Tensor> readSource(const ValueSource& source) {
  if (source.host.defined()) return source.host;
  int64_t elements = 1;
  for (int64_t n : source.sizes) elements *= n;
  std::optional<at::Tensor> out;
  if (elements == 0) {
    out = at::detail::empty_strided_cpu(source.sizes, source.strides, source.dtype);
  } else if (!source.version) {
    return std::nullopt;
  } else {
    const Version& version = *source.version;
    switch (version.state.load(std::memory_order_acquire)) {
      case Version::State::kPending:
      case Version::State::kUnknown: return std::nullopt;
      case Version::State::kFull:
        out = tensorOver(version.bytes, source.dtype, source.sizes, source.strides, source.offset);
        break;
      case Version::State::kUniform: {
        const size_t size = c10::elementSize(source.dtype);
        if (!allZero(version) && c10::elementSize(version.dtype) != size) return std::nullopt;
        c10::Storage one = zeroBytes(size);
        std::memcpy(one.mutable_data(), version.element.data(), size);
        const c10::SmallVector<int64_t, 5> strides(source.sizes.size(), 0);
        out = tensorOver(std::move(one), source.dtype, source.sizes, strides, 0);
        break;
      }
    }
  }
  if (source.conjugate) out->_set_conj(true);
  if (source.negative) out->_set_neg(true);
  return out;
}

VersionPtr uniformVersion(const at::Tensor& one_element) {
  auto version = c10::make_intrusive<Version>();
  version->dtype = one_element.scalar_type();
  std::memcpy(version->element.data(), one_element.const_data_ptr(), one_element.itemsize());
  version->state = Version::State::kUniform;
  return version;
}

VersionPtr uniformZeros() {
  static const VersionPtr* zeros = [] {
    auto version = c10::make_intrusive<Version>();
    version->state = Version::State::kUniform;
    return new VersionPtr(std::move(version));
  }();
  return *zeros;
}

VersionPtr fullVersion(c10::Storage bytes) {
  auto version = c10::make_intrusive<Version>();
  version->bytes = std::move(bytes);
  version->state = Version::State::kFull;
  return version;
}

VersionPtr pendingVersion() { return c10::make_intrusive<Version>(); }

VersionPtr unknownVersion(std::shared_ptr<const Exclusion> excluded) {
  auto version = c10::make_intrusive<Version>();
  version->excluded = std::move(excluded);
  version->state = Version::State::kUnknown;
  return version;
}

c10::Storage zeroBytes(size_t bytes) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator, true);
  if (bytes > 0) std::memset(storage.mutable_data(), 0, bytes);
  return storage;
}

c10::Storage writableBytes(const Version& version, size_t bytes, bool exclusive) {
  if (version.state.load(std::memory_order_acquire) == Version::State::kFull) {
    if (exclusive && version.bytes.nbytes() >= bytes) return version.bytes;
    c10::Storage copy = zeroBytes(bytes);
    std::memcpy(copy.mutable_data(), version.bytes.data(), std::min(bytes, version.bytes.nbytes()));
    return copy;
  }
  c10::Storage spread = zeroBytes(bytes);
  if (!allZero(version)) {
    const size_t size = c10::elementSize(version.dtype);
    auto* to = static_cast<uint8_t*>(spread.mutable_data());
    for (size_t at = 0; at + size <= bytes; at += size) std::memcpy(to + at, version.element.data(), size);
  }
  return spread;
}

namespace {

// One after the other from the outermost settle() of this thread: a long chain of deferred operators must not recurse.
void runWaiters(std::vector<std::function<void()>> waiters) {
  thread_local std::deque<std::function<void()>> queue;
  thread_local bool draining = false;
  for (auto& waiter : waiters) queue.push_back(std::move(waiter));
  if (draining) return;
  draining = true;
  while (!queue.empty()) {
    auto next = std::move(queue.front());
    queue.pop_front();
    try {
      next();
    } catch (...) {
      draining = false;
      throw;
    }
  }
  draining = false;
}

}  // namespace

void settle(const VersionPtr& target, const VersionPtr& result) {
  std::vector<std::function<void()>> waiters;
  {
    std::lock_guard<std::mutex> hold(target->mutex);
    if (target->state.load() != Version::State::kPending) return;
    auto state = Version::State::kUnknown;
    if (result) {
      state = result->state.load(std::memory_order_acquire);
      target->guessed = result->guessed;
      target->routed = result->routed;
      target->dtype = result->dtype;
      target->element = result->element;
      target->bytes = result->bytes;
    }
    TORCH_INTERNAL_ASSERT(state != Version::State::kPending);
    target->state.store(state, std::memory_order_release);
    waiters.swap(target->waiters);
  }
  runWaiters(std::move(waiters));
}

void whenSettled(const VersionPtr& version, std::function<void()> then) {
  {
    std::lock_guard<std::mutex> hold(version->mutex);
    if (version->state.load() == Version::State::kPending) {
      version->waiters.push_back(std::move(then));
      return;
    }
  }
  then();
}

bool fitsShadow(int64_t storage_bytes, c10::ScalarType dtype, bool routed) {
  if (!c10::isIntegralType(dtype, /*includeBool=*/true)) return storage_bytes <= kFloatShadowBytes;
  return storage_bytes <= (routed ? kRoutedShadowBytes : kIntegerShadowBytes);
}

bool coversStorage(const at::Tensor& tensor) {
  return size_t(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes() &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace phantom
