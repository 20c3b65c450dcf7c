// Operators whose result's shape depends on data, and those that bring a number to the host: as on a GPU they wait.
#include "time/Clock.h"
#include "core/Device.h"
#include "operators/Dispatch.h"
#include "operators/OperatorCall.h"
#include "operators/DispatchGuards.h"
#include "time/Timeline.h"
#include "values/Values.h"
#include "values/ValueGuess.h"
#include "values/HostValues.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/unique_dim_consecutive.h>
#include <ATen/ops/_unique2.h>

namespace phantom {
namespace {

using Value = std::optional<at::Tensor>;

void waitFor(const char* name, const at::Tensor& self, const at::Tensor& out) {
  launchNamed(name, {self}, {out}, self.device());
  synchronize(streamTail(self.device().index(), currentStream(self.device().index())), name);
  settleHostCopies();
}

// The host must know this value: counted if it is not known or was guessed.
Value readForShape(const at::Tensor& tensor, const char* what) {
  Value value = awaitValue(tensor);
  if (value) countGuessedRead(tensor, what);
  else countGuessedShape(what);
  return value;
}

at::Tensor onDevice(const at::Tensor& host, c10::Device device) {
  at::Tensor out = makeVirtual(host.sizes(), host.strides(), host.scalar_type(), device);
  setValue(out, host);
  return out;
}

at::Tensor fresh(std::vector<int64_t> sizes, c10::ScalarType dtype, c10::Device device) {
  at::Tensor shape = at::detail::empty_meta(sizes, dtype);
  return makeVirtual(shape.sizes(), shape.strides(), dtype, device);
}

// A guessed count or index tensor; without a value if it would be too large to keep.
at::Tensor guessed(const at::Tensor& host, c10::Device device) {
  at::Tensor out = makeVirtual(host.sizes(), host.strides(), host.scalar_type(), device);
  attachGuess(out, host);
  return out;
}

at::Tensor nonzero(const at::Tensor& self) {
  waitFor("aten::nonzero", self, self);
  const Value value = readForShape(self, "nonzero");
  PlainDispatch plain;
  if (value) return onDevice(at::nonzero(*value), self.device());
  const int64_t count = self.numel();
  if (count * self.dim() > (int64_t(1) << 21)) return fresh({count, self.dim()}, c10::kLong, self.device());
  return guessed(at::nonzero(at::ones(self.sizes(), c10::kBool)), self.device());
}

at::Tensor maskedSelect(const at::Tensor& self, const at::Tensor& mask) {
  waitFor("aten::masked_select", self, mask);
  const Value chosen = readForShape(mask, "masked_select");
  PlainDispatch plain;
  const auto sizes = at::infer_size_dimvector(self.sizes(), mask.sizes());
  int64_t elements = 1;
  for (int64_t n : sizes) elements *= n;
  if (chosen) {
    const Value value = awaitValue(self);
    if (value) return onDevice(at::masked_select(*value, *chosen), self.device());
    elements = chosen->expand(at::IntArrayRef(sizes.data(), sizes.size())).sum().item().toLong();
  }
  return fresh({elements}, self.scalar_type(), self.device());
}

// Values of a `unique` without a value: all distinct, in order.
std::tuple<at::Tensor, at::Tensor, at::Tensor> allDistinct(const at::Tensor& self, std::vector<int64_t> sizes,
                                                           int64_t count, at::IntArrayRef inverse_sizes, bool inverse,
                                                           bool counts) {
  at::Tensor values = fresh(std::move(sizes), self.scalar_type(), self.device());
  const auto none = [&] { return fresh({0}, c10::kLong, self.device()); };
  at::Tensor where = inverse ? guessed(at::arange(count, c10::kLong).view(inverse_sizes), self.device()) : none();
  at::Tensor how_many = counts ? guessed(at::ones({count}, c10::kLong), self.device()) : none();
  return {values, where, how_many};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> allOnDevice(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& host,
                                                           c10::Device device) {
  return {onDevice(std::get<0>(host), device), onDevice(std::get<1>(host), device),
          onDevice(std::get<2>(host), device)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique2(const at::Tensor& self, bool sorted, bool inverse, bool counts) {
  waitFor("aten::_unique2", self, self);
  const Value value = readForShape(self, "unique");
  PlainDispatch plain;
  if (value) return allOnDevice(at::_unique2(*value, sorted, inverse, counts), self.device());
  return allDistinct(self, {self.numel()}, self.numel(), self.sizes(), inverse, counts);
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool inverse) {
  auto all = unique2(self, sorted, inverse, false);
  return {std::get<0>(all), std::get<1>(all)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> uniqueDim(const at::Tensor& self, int64_t dim, bool sorted, bool inverse,
                                                         bool counts) {
  waitFor("aten::unique_dim", self, self);
  const Value value = readForShape(self, "unique");
  PlainDispatch plain;
  if (value) return allOnDevice(at::unique_dim(*value, dim, sorted, inverse, counts), self.device());
  const int64_t n = self.size(dim);
  return allDistinct(self, self.sizes().vec(), n, {n}, inverse, counts);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> uniqueConsecutive(const at::Tensor& self, bool inverse, bool counts,
                                                                 std::optional<int64_t> dim) {
  waitFor("aten::unique_consecutive", self, self);
  const Value value = readForShape(self, "unique_consecutive");
  PlainDispatch plain;
  if (value) return allOnDevice(at::unique_consecutive(*value, inverse, counts, dim), self.device());
  if (dim) return allDistinct(self, self.sizes().vec(), self.size(*dim), {self.size(*dim)}, inverse, counts);
  return allDistinct(self, {self.numel()}, self.numel(), self.sizes(), inverse, counts);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> uniqueDimConsecutive(const at::Tensor& self, int64_t dim, bool inverse,
                                                                    bool counts) {
  return uniqueConsecutive(self, inverse, counts, dim);
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  waitFor("aten::bincount", self, self);
  const Value value = readForShape(self, "bincount");
  const c10::ScalarType dtype = !weights || !weights->defined()         ? c10::kLong
                                : weights->scalar_type() == c10::kFloat ? c10::kFloat
                                                                        : c10::kDouble;
  PlainDispatch plain;
  if (!value) return fresh({std::max<int64_t>(minlength, 2)}, dtype, self.device());
  if (!weights || !weights->defined()) return onDevice(at::bincount(*value, {}, minlength), self.device());
  const Value weight_values = awaitValue(*weights);
  if (weight_values) return onDevice(at::bincount(*value, *weight_values, minlength), self.device());
  const at::Tensor counts = at::bincount(*value, {}, minlength);
  return fresh(counts.sizes().vec(), dtype, self.device());
}

at::Tensor repeatInterleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  if (!output_size) waitFor("aten::repeat_interleave", repeats, repeats);
  const Value value = output_size ? knownValue(repeats) : readForShape(repeats, "repeat_interleave");
  PlainDispatch plain;
  if (value) return onDevice(at::repeat_interleave(*value, output_size), repeats.device());
  return fresh({output_size.value_or(repeats.numel())}, repeats.scalar_type(), repeats.device());
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and ",
              other.device(), "!");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected object of data type ", self.scalar_type(),
              " but got data type ", other.scalar_type(), " for argument 'other' in call to equal");
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  waitFor("aten::equal", self, other);
  const Value a = awaitValue(self), b = awaitValue(other);
  if (a && b) {
    countGuessedRead(self, "equal");
    PlainDispatch plain;
    return at::equal(*a, *b);
  }
  healthyValue(a ? other : self, "equal");
  return true;
}

// Sequence lengths are read on the host, then the loss is the one with integer lists.
std::vector<int64_t> lengths(const at::Tensor& tensor, int64_t healthy) {
  const Value value = tensor.is_cuda() ? readForShape(tensor, "ctc_loss") : Value(tensor);
  PlainDispatch plain;
  if (!value) return std::vector<int64_t>(size_t(tensor.numel()), healthy);
  const at::Tensor whole = value->to(c10::kLong).contiguous();
  const auto* data = whole.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + whole.numel());
}

std::tuple<at::Tensor, at::Tensor> ctcLoss(const at::Tensor& log_probs, const at::Tensor& targets,
                                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                                           int64_t blank, bool zero_infinity) {
  return at::_ctc_loss(log_probs, targets, lengths(input_lengths, log_probs.size(0)), lengths(target_lengths, 1), blank,
                       zero_infinity);
}

at::Tensor ctcLossBackward(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths, const at::Tensor& loss,
                           const at::Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  return at::_ctc_loss_backward(grad, log_probs, targets, lengths(input_lengths, log_probs.size(0)),
                                lengths(target_lengths, 1), loss, log_alpha, blank, zero_infinity);
}

// Numerical checks of linear algebra: a healthy matrix is not singular. The CUDA build reads `info` here.
void checkLinalgErrors(const at::Tensor& info, std::string_view, bool) {
  const c10::Device device = info.device();
  synchronize(streamTail(device.index(), currentStream(device.index())), "linalg error check");
}

bool isMask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte);
}

// Masks among the indices become positions first, by nonzero, where the host learns how many there are.
class IndexKernel final : public c10::OperatorKernel {
 public:
  explicit IndexKernel(const OperatorInfo& info)
      : info_(info), puts_(info.writes && info.base.find("put") != std::string::npos) {}

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t base = stack->size() - info_.arguments.size();
    const auto indices = (*stack)[base + 1].toListRef();
    size_t masks = 0, given = 0;
    for (const c10::IValue& index : indices) {
      if (index.isNone() || !index.toTensor().defined()) continue;
      ++given;
      masks += isMask(index.toTensor());
    }
    if (masks > 0) {
      if (puts_ && masks == 1 && given == 1 && filled(*stack, base)) return;
      (*stack)[base + 1] = positions(indices);
    }
    runVirtual(info_, *stack);
  }

 private:
  // index_put_ of one number at a mask is masked_fill_, without asking the host.
  bool filled(torch::jit::Stack& stack, size_t base) {
    const at::Tensor self = stack[base].toTensor();
    const at::Tensor& value = stack[base + 2].toTensor();
    if (value.numel() != 1 || stack[base + 3].toBool() || (value.is_cuda() && value.device() != self.device()))
      return false;
    int64_t before = 0;
    at::Tensor mask;
    for (const c10::IValue& index : stack[base + 1].toListRef()) {
      if (!index.isNone() && index.toTensor().defined()) mask = index.toTensor();
      else if (!mask.defined()) ++before;
    }
    if (!mask.is_cuda() || mask.scalar_type() != c10::kBool) return false;
    const int64_t after = self.dim() - before - mask.dim();
    if (after < 0) return false;
    for (int64_t i = 0; i < mask.dim(); ++i) {
      if (mask.size(i) != self.size(before + i)) return false;
    }
    for (int64_t i = 0; i < after; ++i) mask = mask.unsqueeze(-1);
    self.masked_fill_(mask, value.dim() == 0 ? value : value.reshape({}));
    torch::jit::drop(stack, info_.arguments.size());
    stack.emplace_back(self);
    return true;
  }

  c10::List<std::optional<at::Tensor>> positions(c10::ArrayRef<c10::IValue> indices) {
    c10::List<std::optional<at::Tensor>> out;
    for (const c10::IValue& index : indices) {
      if (index.isNone() || !isMask(index.toTensor())) {
        out.push_back(index.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(index.toTensor()));
        continue;
      }
      const at::Tensor where = at::nonzero(index.toTensor());
      for (int64_t d = 0; d < index.toTensor().dim(); ++d) out.push_back(where.select(1, d));
    }
    return out;
  }

  const OperatorInfo& info_;
  const bool puts_;
};

}  // namespace

void registerValueReaders() {
  using c10::KernelFunction;
  auto cuda = [](const char* name, KernelFunction kernel) {
    registerKernel(name, c10::DispatchKey::CUDA, std::move(kernel));
  };
  cuda("nonzero", KernelFunction::makeFromUnboxedRuntimeFunction(&nonzero));
  cuda("masked_select", KernelFunction::makeFromUnboxedRuntimeFunction(&maskedSelect));
  cuda("_unique2", KernelFunction::makeFromUnboxedRuntimeFunction(&unique2));
  cuda("_unique", KernelFunction::makeFromUnboxedRuntimeFunction(&unique));
  cuda("unique_dim", KernelFunction::makeFromUnboxedRuntimeFunction(&uniqueDim));
  cuda("unique_consecutive", KernelFunction::makeFromUnboxedRuntimeFunction(&uniqueConsecutive));
  cuda("unique_dim_consecutive", KernelFunction::makeFromUnboxedRuntimeFunction(&uniqueDimConsecutive));
  cuda("bincount", KernelFunction::makeFromUnboxedRuntimeFunction(&bincount));
  cuda("repeat_interleave.Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&repeatInterleave));
  cuda("equal", KernelFunction::makeFromUnboxedRuntimeFunction(&equal));
  cuda("_ctc_loss.Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&ctcLoss));
  cuda("_ctc_loss_backward.Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&ctcLossBackward));
  cuda("_linalg_check_errors", KernelFunction::makeFromUnboxedRuntimeFunction(&checkLinalgErrors));
  for (const char* name : {"index.Tensor", "index.Tensor_out", "_unsafe_index.Tensor", "_index_put_impl_"}) {
    const std::string text = name;
    const size_t dot = text.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + text.substr(0, dot)).c_str(),
                                                                   dot == std::string::npos ? "" : name + dot + 1);
    cuda(name, KernelFunction::makeFromBoxedFunctor(std::make_unique<IndexKernel>(operatorInfo(op))));
  }
}

}  // namespace phantom
