// The miss path: runs the operator's own Meta kernel on meta tensors that share storage as the arguments do.
#include "operators/OperatorCall.h"
#include "operators/DispatchGuards.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <cstring>
#include <map>

namespace phantom {
namespace {

// Stand-ins for the call's tensors: on `meta`, or zeros on the CPU where the operator has no Meta kernel.
class StandIns {
 public:
  StandIns(const Call& call, bool on_host) : call_(call), on_host_(on_host) {
    for (const InputTensor& input : call.inputs) tensors_.push_back(make(*input.tensor));
    for (const at::Tensor& t : tensors_) offsets_.push_back(t.storage_offset());
  }

  torch::jit::Stack arguments() { return withTensors(call_.arguments(), tensors_, on_host_ ? c10::kCPU : c10::kMeta); }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int64_t offset(size_t index) const { return offsets_[index]; }

 private:
  at::Tensor make(const at::Tensor& tensor) {
    // A host scalar takes part with its value: Python's reference kernels may look at it. Only masked_fill's reference
    // insists on one device for anything but a real "cuda" tensor (torch/_refs/__init__.py).
    const bool one_device = call_.info.name.rfind("aten::masked_fill", 0) == 0;
    if (tensor.is_cpu() && (on_host_ || (tensor.dim() == 0 && !one_device))) return tensor;
    for (size_t j = 0; j < tensors_.size(); ++j) {
      if (call_.inputs[j].tensor->unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return tensors_[j];
    }
    const int64_t offset = relativeOffset(tensor);
    at::Tensor out;
    const size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), offset);
    c10::Storage& storage = storages_[tensor.storage().unsafeGetStorageImpl()];
    if (on_host_) {
      TORCH_CHECK(bytes <= (size_t(1) << 30), call_.info.name,
                  " has no Meta kernel and its arguments are too large to try it on the CPU");
      if (!storage) storage = at::detail::empty_cpu({0}, tensor.scalar_type()).storage();
    } else if (!storage) {
      storage = at::detail::empty_strided_meta({0}, {1}, tensor.scalar_type()).storage();
    }
    if (storage.nbytes() < bytes) {
      if (on_host_) {
        auto data = c10::GetCPUAllocator()->allocate(bytes);
        std::memset(data.get(), 0, bytes);
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
      }
      storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
    const auto keys = c10::DispatchKeySet(on_host_ ? c10::DispatchKey::CPU : c10::DispatchKey::Meta);
    out = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, tensor.dtype());
    c10::TensorImpl* impl = out.unsafeGetTensorImpl();
    impl->set_storage_offset(offset);
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    if (tensor.is_conj()) out._set_conj(true);
    if (tensor.is_neg()) out._set_neg(true);
    return out;
  }

  // Against the smallest offset among the arguments that share the storage: the key knows only differences.
  int64_t relativeOffset(const at::Tensor& tensor) const {
    int64_t least = tensor.storage_offset();
    for (const InputTensor& input : call_.inputs) {
      if (input.tensor->has_storage() &&
          input.tensor->storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
        least = std::min(least, input.tensor->storage_offset());
      }
    }
    return tensor.storage_offset() - least;
  }

  const Call& call_;
  const bool on_host_;
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> offsets_;
  std::map<c10::StorageImpl*, c10::Storage> storages_;
};

class Description {
 public:
  Description(const Call& call, const StandIns& stand_ins)
      : call_(call), stand_ins_(stand_ins), entry_(c10::make_intrusive<MetadataEntry>()) {}

  EntryPtr make(const torch::jit::Stack& results) {
    describeChanges();
    for (const c10::IValue& result : results) describe(result);
    bool nothing_new = !entry_->any_fresh;
    const bool writes = call_.info.writes && !call_.info.changes_metadata;
    entry_->metadata_only = call_.info.allocates_only || (nothing_new && !writes && !entry_->returns.empty());
    return entry_;
  }

 private:
  void describeChanges() {
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      const at::Tensor& before = *call_.inputs[i].tensor;
      const at::Tensor& after = stand_ins_.tensors()[i];
      if (!call_.inputs[i].written || after.unsafeGetTensorImpl() == before.unsafeGetTensorImpl()) continue;
      const int64_t moved = after.storage_offset() - stand_ins_.offset(i);
      if (before.sizes() == after.sizes() && before.strides() == after.strides() && moved == 0) continue;
      InputChange change;
      change.input = uint16_t(i);
      change.offset = moved;
      change.sizes.assign(after.sizes().begin(), after.sizes().end());
      change.strides.assign(after.strides().begin(), after.strides().end());
      entry_->changes.push_back(std::move(change));
    }
  }

  void describe(const c10::IValue& result) {
    ReturnSpec spec;
    spec.first = uint32_t(entry_->outputs.size());
    if (result.isTensor()) {
      entry_->outputs.push_back(describe(result.toTensor()));
      spec.count = 1;
    } else if (result.isTensorList()) {
      spec.kind = ReturnSpec::Kind::kList;
      for (const c10::IValue& element : result.toListRef()) entry_->outputs.push_back(describe(element.toTensor()));
      spec.count = uint32_t(entry_->outputs.size()) - spec.first;
    } else {
      spec.kind = ReturnSpec::Kind::kConstant;
      spec.constant = result;
    }
    entry_->returns.push_back(std::move(spec));
  }

  OutputSpec describe(const at::Tensor& out) {
    OutputSpec spec;
    if (!out.defined()) return spec;
    spec.dtype = out.scalar_type();
    spec.sizes.assign(out.sizes().begin(), out.sizes().end());
    spec.strides.assign(out.strides().begin(), out.strides().end());
    spec.conjugate = out.is_conj();
    spec.negative = out.is_neg();
    const auto& inputs = stand_ins_.tensors();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].unsafeGetTensorImpl() == out.unsafeGetTensorImpl()) {
        spec.kind = OutputKind::kInput;
        spec.source = uint16_t(i);
        return spec;
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_cpu() || !call_.inputs[i].tensor->is_cpu()) {
        if (inputs[i].storage().unsafeGetStorageImpl() == out.storage().unsafeGetStorageImpl()) {
          spec.kind = OutputKind::kView;
          spec.source = uint16_t(i);
          spec.offset = out.storage_offset() - stand_ins_.offset(i);
          return spec;
        }
      }
    }
    // With stand-ins on the host every result is on the host, but stands for one on the device.
    spec.kind = out.is_meta() || stood_on_host ? OutputKind::kFresh : OutputKind::kHost;
    spec.bytes = int64_t(at::detail::computeStorageNbytes(spec.sizes, spec.strides, out.itemsize()));
    entry_->any_fresh = entry_->any_fresh || spec.kind == OutputKind::kFresh;
    return spec;
  }

 public:
  bool stood_on_host = false;

 private:
  const Call& call_;
  const StandIns& stand_ins_;
  EntryPtr entry_;
};

}  // namespace

torch::jit::Stack withTensors(c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<at::Tensor> tensors,
                              c10::DeviceType device) {
  size_t next = 0;
  auto replaced = [&](const at::Tensor& tensor) { return tensor.defined() ? tensors[next++] : at::Tensor(); };
  torch::jit::Stack out;
  out.reserve(arguments.size());
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      out.emplace_back(replaced(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) list.push_back(replaced(element.toTensor()));
      out.emplace_back(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isNone()) list.push_back(std::nullopt);
        else list.push_back(replaced(element.toTensor()));
      }
      out.emplace_back(std::move(list));
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      out.emplace_back(c10::Device(device));
    } else if (value.isGenerator()) {
      out.emplace_back();
    } else {
      out.push_back(value);
    }
  }
  return out;
}

namespace {

bool channelsLast(const at::Tensor& t) {
  const auto format = t.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

// The Meta kernel cannot know the backend and says contiguous; cuDNN's convolutions give channels-last results if the
// input or the weight is (ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format).
void followCudnnFormat(const Call& call, MetadataEntry& entry) {
  const size_t first = call.info.base == "convolution_backward" ? 1 : 0;
  if (call.inputs.size() < first + 2) return;
  if (!channelsLast(*call.inputs[first].tensor) && !channelsLast(*call.inputs[first + 1].tensor)) return;
  for (OutputSpec& spec : entry.outputs) {
    if (spec.kind != OutputKind::kFresh || (spec.sizes.size() != 4 && spec.sizes.size() != 5)) continue;
    const auto strides = spec.sizes.size() == 4 ? c10::get_channels_last_strides_2d(spec.sizes)
                                                : c10::get_channels_last_strides_3d(spec.sizes);
    spec.strides.assign(strides.begin(), strides.end());
  }
}

EntryPtr deriveOn(const Call& call, bool on_host) {
  StandIns stand_ins(call, on_host);
  torch::jit::Stack stack = stand_ins.arguments();
  PlainDispatch plain;
  call.info.op.redispatchBoxed(c10::DispatchKeySet(on_host ? c10::DispatchKey::CPU : c10::DispatchKey::Meta), &stack);
  Description description(call, stand_ins);
  description.stood_on_host = on_host;
  EntryPtr entry = description.make(stack);
  if (call.info.base == "convolution" || call.info.base == "_convolution" || call.info.base == "convolution_backward")
    followCudnnFormat(call, *entry);
  return entry;
}

}  // namespace

EntryPtr deriveMetadata(const Call& call) {
  ensureSession();
  using c10::DispatchKey;
  const auto& op = call.info.op;
  const bool meta = op.hasComputedKernelForDispatchKey(DispatchKey::Meta);
  const bool host = op.hasKernelForDispatchKey(DispatchKey::CPU);
  if (meta && !host) return deriveOn(call, false);
  if (!meta) {
    if (op.schema().returns().empty() &&
        call.info.writes) {  // writes into its arguments and returns nothing: a fused optimizer
      StandIns stand_ins(call, false);
      return Description(call, stand_ins).make({});
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        host, call.info.name,
        " has neither a Meta nor a CPU kernel, so the virtual GPU does not know what it returns; "
        "register one with torch.library.register_fake");
    return deriveOn(call, true);
  }
  try {
    return deriveOn(call, false);
  } catch (const c10::NotImplementedError&) {  // this Meta kernel declines these arguments
    return deriveOn(call, true);
  }
}

}  // namespace phantom
