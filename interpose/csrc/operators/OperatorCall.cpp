#include "operators/OperatorCall.h"

#include "operators/KernelRequest.h"

#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Device.h"
#include "operators/Dispatch.h"
#include "operators/DispatchGuards.h"
#include "device/Generator.h"
#include "values/ValueExecution.h"
#include "values/Values.h"
#include "values/ValueVersion.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace phantom {
namespace {

std::atomic<uint64_t> g_operators{0}, g_hits{0}, g_misses{0};

// Storages shared between arguments are looked for among the first few only: longer lists are optimizer states.
constexpr size_t kAliasWindow = 8;
// More packed sequences than this are taken as equal.
constexpr int64_t kMaxOffsets = 65'537;

bool holdsGuess(const at::Tensor& tensor) {
  const VersionPtr version = tensor.is_cuda() ? versionOf(tensor) : VersionPtr();
  return version && version->guessed;
}

void hashTensor(const at::Tensor& tensor, MetadataHasher& hash) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const uint64_t flags = uint64_t(impl->device_type()) | uint64_t(tensor.scalar_type()) << 8 |
                         uint64_t(tensor.is_conj()) << 16 | uint64_t(tensor.is_neg()) << 17 |
                         uint64_t(impl->is_wrapped_number()) << 18 | uint64_t(impl->dim()) << 24;
  hash.add(flags);
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    hash.add(uint64_t(sizes[i]));
    hash.add(uint64_t(strides[i]));
  }
}

// 0 and 1 choose other kernels (`beta`, `dropout_p`); any other value of a float leaves metadata alone.
uint64_t floatClass(double value) { return value == 0 ? 1 : value == 1 ? 2 : 3; }

uint64_t bitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

Call::Call(const OperatorInfo& operator_info, torch::jit::Stack& call_stack)
    : info(operator_info),
      stack(call_stack),
      count(info.arguments.size()),
      base(stack.size() - count),
      device(c10::kCUDA, currentDevice()) {
  scan();
}

void Call::scan() {
  MetadataHasher hash;
  hash.add(reinterpret_cast<uint64_t>(&info));
  hash.add(uint64_t(c10::get_default_dtype_as_scalartype()));
  for (size_t i = 0; i < count; ++i) hashValue(stack[base + i], info.arguments[i].scalar, uint32_t(i), hash);
  if (info.fp32_by_tf32) hash.add(tf32State());
  if (info.cost_by_offsets) readOffsets(hash);
  key = hash.key();
}

// Values that a guess took part in are no lengths of sequences: their argument counts as unknown.
void Call::readOffsets(MetadataHasher& hash) {
  for (const InputTensor& input : inputs) {
    const at::Tensor& tensor = *input.tensor;
    if (!info.arguments[input.argument].offsets || tensor.dim() != 1 || tensor.numel() < 2 ||
        tensor.numel() > kMaxOffsets)
      continue;
    if (!c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) || holdsGuess(tensor)) continue;
    const std::optional<at::Tensor> value = tensor.is_cpu() ? tensor : knownValue(tensor);
    if (!value) continue;
    PlainDispatch plain;
    const at::Tensor numbers = value->to(at::kLong).contiguous();
    const int64_t* begin = numbers.const_data_ptr<int64_t>();
    KnownOffsets known;
    known.argument = input.argument;
    known.values.assign(begin, begin + numbers.numel());
    if (!std::is_sorted(known.values.begin(), known.values.end())) continue;
    hash.add(0x30000 + input.argument);
    for (int64_t number : known.values) hash.add(uint64_t(number));
    offsets.push_back(std::move(known));
  }
}

void Call::see(const at::Tensor& tensor, uint32_t argument, MetadataHasher& hash) {
  if (!tensor.defined()) {
    hash.add(1);
    return;
  }
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() == c10::kCUDA) {
    TORCH_CHECK_NOT_IMPLEMENTED(impl->layout() == c10::kStrided && impl->has_storage(), info.name, ": a ",
                                impl->layout(), " tensor on the virtual GPU is not supported by this operator");
    if (!have_device_) {
      device = impl->device();
      have_device_ = true;
    } else if (impl->device() != device && !info.host_tensors_allowed && !info.arguments[argument].out) {
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device,
                  " and ", impl->device(), "! (", info.name, ")");
    }
  } else if (impl->device_type() == c10::kCPU && impl->dim() > 0 && !info.host_tensors_allowed) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device,
                " and cpu! (", info.name, ")");
  }
  hashTensor(tensor, hash);
  const size_t seen = std::min(inputs.size(), kAliasWindow);
  for (size_t j = 0; j < seen; ++j) {
    const at::Tensor& other = *inputs[j].tensor;
    if (other.unsafeGetTensorImpl() == impl) {
      hash.add(0x10000 + j);
      break;
    }
    if (other.has_storage() && impl->has_storage() &&
        other.storage().unsafeGetStorageImpl() == impl->unsafe_storage().unsafeGetStorageImpl()) {
      hash.add(0x20000 + j);
      hash.add(uint64_t(impl->storage_offset() - other.storage_offset()));
      break;
    }
  }
  const ArgumentInfo& about = info.arguments[argument];
  inputs.push_back({&tensor, argument, about.written, about.out});
}

void Call::hashValue(const c10::IValue& value, ScalarHash how, uint32_t argument, MetadataHasher& hash) {
  if (value.isTensor()) {
    see(value.toTensor(), argument, hash);
  } else if (value.isInt()) {
    hash.add(2);
    if (how != ScalarHash::kByType) hash.add(uint64_t(value.toInt()));
  } else if (value.isDouble()) {
    hash.add(3);
    if (how == ScalarHash::kByValue) hash.add(bitsOf(value.toDouble()));
    else if (how == ScalarHash::kFloatsByType) hash.add(floatClass(value.toDouble()));
  } else if (value.isBool()) {
    hash.add(value.toBool() ? 5 : 4);
  } else if (value.isNone()) {
    hash.add(6);
  } else if (value.isList()) {
    const auto list = value.toListRef();
    hash.add(7);
    hash.add(list.size());
    for (const c10::IValue& element : list) hashValue(element, how, argument, hash);
  } else if (value.isDevice()) {
    hash.add(8);
    const c10::Device given = value.toDevice();
    hash.add(uint64_t(given.type()));
    if (given.is_cuda() && !have_device_) {
      device = given.has_index() ? given : c10::Device(c10::kCUDA, currentDevice());
      have_device_ = true;
    }
  } else if (value.isString()) {
    hash.add(9);
    hash.add(std::hash<std::string_view>()(value.toStringView()));
  } else if (value.isComplexDouble()) {
    hash.add(10);
  } else if (value.isGenerator()) {
    hash.add(11);
  } else {
    // Whatever else an operator takes (objects of a custom class): its identity stands for it.
    hash.add(12);
    hash.add(reinterpret_cast<uint64_t>(value.isPtrType() ? value.internalToPointer() : nullptr));
  }
}

void growStorage(const at::Tensor& tensor, size_t bytes) {
  const c10::Storage& storage = tensor.storage();
  if (bytes <= storage.nbytes()) return;
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocateOn(tensor.device().index(), bytes));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

at::Tensor makeVirtual(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      allocateOn(device.has_index() ? device.index() : currentDevice(), bytes), deviceAllocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void applyChanges(const Call& call, const MetadataEntry& entry) {
  for (const InputChange& change : entry.changes) {
    const at::Tensor& tensor = *call.inputs[change.input].tensor;
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const int64_t offset = impl->storage_offset() + change.offset;
    if (tensor.is_cuda()) {
      growStorage(tensor, at::detail::computeStorageNbytes(change.sizes, change.strides, tensor.itemsize(), offset));
    }
    impl->set_sizes_and_strides(change.sizes, change.strides);
    if (change.offset != 0) impl->set_storage_offset(offset);
  }
}

std::vector<at::Tensor> buildOutputs(const Call& call, const MetadataEntry& entry) {
  std::vector<at::Tensor> out;
  out.reserve(entry.outputs.size());
  for (const OutputSpec& spec : entry.outputs) {
    switch (spec.kind) {
      case OutputKind::kFresh: out.push_back(makeVirtual(spec.sizes, spec.strides, spec.dtype, call.device)); break;
      case OutputKind::kInput: out.push_back(*call.inputs[spec.source].tensor); break;
      case OutputKind::kView: {
        const at::Tensor& source = *call.inputs[spec.source].tensor;
        auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source.storage()),
                                                             source.key_set(), c10::scalarTypeToTypeMeta(spec.dtype));
        view.unsafeGetTensorImpl()->set_storage_offset(source.storage_offset() + spec.offset);
        view.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
        out.push_back(std::move(view));
        break;
      }
      case OutputKind::kHost:
        out.push_back(at::detail::empty_strided_cpu(spec.sizes, spec.strides, spec.dtype));
        std::memset(out.back().mutable_data_ptr(), 0, out.back().storage().nbytes());
        break;
      case OutputKind::kUndefined: out.emplace_back(); break;
    }
    if (out.back().defined() && spec.kind != OutputKind::kInput) {
      if (spec.conjugate != out.back().is_conj()) out.back()._set_conj(spec.conjugate);
      if (spec.negative != out.back().is_neg()) out.back()._set_neg(spec.negative);
    }
  }
  return out;
}

void runVirtual(const OperatorInfo& info, torch::jit::Stack& stack) {
  g_operators.fetch_add(1, std::memory_order_relaxed);
  const HookScope scope;
  Call call(info, stack);
  EntryPtr entry = findMetadata(call.key);
  if (!entry || entry->cost_generation != costGeneration()) {
    g_misses.fetch_add(1, std::memory_order_relaxed);
    entry = deriveMetadata(call);
    priceKernel(call, *entry);
    storeMetadata(call.key, entry);
  } else {
    g_hits.fetch_add(1, std::memory_order_relaxed);
  }
  // Values as of before the call have to be caught before outputs are resized or overwritten.
  std::vector<at::Tensor> outputs;
  ValueWork values(call, *entry);
  applyChanges(call, *entry);
  outputs = buildOutputs(call, *entry);
  launch(*entry, call.device);
  if (info.random && !outputs.empty() && outputs[0].defined()) {
    std::optional<at::Generator> generator;
    for (const c10::IValue& argument : call.arguments()) {
      if (argument.isGenerator()) generator = argument.toGenerator();
    }
    drawNumbers(generator, call.device.index(), outputs[0].numel());
  }
  values.finish(outputs);

  c10::SmallVector<c10::IValue, 4> results;
  for (const ReturnSpec& spec : entry->returns) {
    switch (spec.kind) {
      case ReturnSpec::Kind::kTensor: results.emplace_back(std::move(outputs[spec.first])); break;
      case ReturnSpec::Kind::kList: {
        c10::List<at::Tensor> list;
        list.reserve(spec.count);
        for (uint32_t i = 0; i < spec.count; ++i) list.push_back(std::move(outputs[spec.first + i]));
        results.emplace_back(std::move(list));
        break;
      }
      case ReturnSpec::Kind::kConstant: results.push_back(spec.constant); break;
    }
  }
  torch::jit::drop(stack, call.count);
  for (c10::IValue& result : results) stack.push_back(std::move(result));
}

DispatchCounters dispatchCounters() { return {g_operators.load(), g_hits.load(), g_misses.load()}; }

}  // namespace phantom
