#include "values/ValueGuess.h"

#include "core/Config.h"
#include "operators/DispatchGuards.h"
#include "values/Values.h"
#include "values/ValueExecution.h"
#include "values/RoutedValues.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <cmath>

namespace phantom {
namespace {

std::atomic<int64_t> g_step{0};

void attachUniform(const at::Tensor& tensor, const at::Scalar& value) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.numel() == 0 || !coversStorage(tensor)) return;
  VersionPtr version = uniformVersion(at::full({1}, value, tensor.scalar_type()));
  version->guessed = true;
  setVersion(tensor, std::move(version));
}

const c10::IValue* argumentNamed(const Call& call, const char* name) {
  for (size_t i = 0; i < call.count; ++i) {
    if (call.info.op.schema().arguments()[i].name() == name) return &call.argument(i);
  }
  return nullptr;
}

// The number that the other side of a comparison is, if it is a number.
std::optional<double> comparedWith(const Call& call) {
  const c10::IValue& other = call.argument(1);
  if (other.isDouble()) return other.toDouble();
  if (other.isInt()) return double(other.toInt());
  if (other.isTensor() && other.toTensor().defined() && other.toTensor().is_cpu() && other.toTensor().dim() == 0 &&
      !other.toTensor().is_complex()) {
    return other.toTensor().item().toDouble();
  }
  return std::nullopt;
}

void guessComparison(const Call& call, const at::Tensor& out) {
  std::string base = call.info.base;
  if (base.back() == '_') base.pop_back();
  const bool equality_holds = base == "eq" || base == "le" || base == "ge";
  if (call.inputs.size() >= 2 &&
      call.inputs[0].tensor->unsafeGetTensorImpl() == call.inputs[1].tensor->unsafeGetTensorImpl()) {
    attachUniform(out, equality_holds);
    return;
  }
  const at::Tensor& self = *call.inputs[0].tensor;
  const auto number = comparedWith(call);
  if (number && !std::isfinite(*number)) {  // nothing is infinite or NaN
    const bool below = *number > 0;
    bool holds = base == "ne";
    if (!std::isnan(*number)) holds = holds || (below ? base == "lt" || base == "le" : base == "gt" || base == "ge");
    attachUniform(out, holds);
    return;
  }
  if (c10::isIntegralType(self.scalar_type(), false) && number && (base == "eq" || base == "ne")) {
    attachUniform(out, base == "ne");  // no token is the end-of-sequence token
    return;
  }
  if (out.numel() != 1) return;
  // A single number compares as it would read.
  std::vector<at::Tensor> sides;
  for (const InputTensor& input : call.inputs) {
    if (input.out) {
      sides.push_back(at::detail::empty_cpu({0}, c10::kBool));
      continue;
    }
    auto value = input.tensor->is_cuda() ? knownValue(*input.tensor) : std::optional<at::Tensor>(*input.tensor);
    sides.push_back(value ? *value
                          : healthyElement(input.tensor->scalar_type()).reshape({}).expand(input.tensor->sizes()));
  }
  if (call.info.writes && !call.inputs.back().out) return;  // in place: the operand's type need not be bool
  PlainDispatch plain;
  torch::jit::Stack stack = withTensors(call.arguments(), sides, c10::kCPU);
  call.info.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  attachUniform(out, stack.front().toTensor().item());
}

int64_t wrapped(int64_t dim, int64_t dims) { return dims == 0 ? 0 : dim < 0 ? dim + dims : dim; }

void guessIndices(const Call& call, const std::vector<at::Tensor>& outputs, bool sorted) {
  const std::string& base = call.info.base;
  const bool only_indices =
      base == "argmax" || base == "argmin" || base == "multinomial" || base == "argsort" || base == "randperm";
  if (!only_indices && outputs.size() < 2) return;
  const at::Tensor& out = outputs.back();
  if (!out.defined() || out.scalar_type() != c10::kLong || out.numel() == 0) return;
  if (base == "randperm") {
    attachGuess(out, at::arange(out.numel(), c10::kLong));
    return;
  }
  const at::Tensor& self = *call.inputs[0].tensor;
  int64_t dim = base == "multinomial" || base == "sort" || base == "argsort" || base == "topk" ? -1 : -2;
  if (const c10::IValue* given = argumentNamed(call, "dim")) {
    if (given->isInt()) dim = given->toInt();
  }
  const bool flat = dim == -2 && (argumentNamed(call, "dim") == nullptr || !argumentNamed(call, "dim")->isInt());
  const int64_t classes = flat ? self.numel() : self.dim() == 0 ? 1 : self.size(wrapped(dim, self.dim()));
  if (classes == 0) return;
  const bool same_rank = out.dim() == self.dim();
  int64_t along = same_rank && out.dim() > 0 && !flat ? wrapped(dim, self.dim()) : std::max<int64_t>(out.dim() - 1, 0);
  if (sorted && out.dim() > 0) {
    at::Tensor line = at::arange(out.size(along), c10::kLong);
    std::vector<int64_t> shape(size_t(out.dim()), 1);
    shape[size_t(along)] = out.size(along);
    attachGuess(out, line.view(shape).expand(out.sizes()));
    return;
  }
  attachGuess(out, balancedIndices(out, along, classes));
}

}  // namespace

void setHealthyStep(int64_t step) { g_step = step; }

at::Tensor healthyElement(c10::ScalarType dtype) {
  at::Scalar value = int64_t(1);
  if (config().unknown_values == UnknownValues::kZeros) value = int64_t(0);
  else if (dtype == c10::kBool) value = false;
  else if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) value = 1.0 + 1.0 / double(1 + g_step.load());
  PlainDispatch plain;
  return at::full({1}, value, at::TensorOptions().dtype(dtype).device(c10::kCPU));
}

at::Tensor balancedIndices(const at::Tensor& tensor, int64_t dim, int64_t classes) {
  PlainDispatch plain;
  at::Tensor positions = at::arange(tensor.numel(), c10::kLong).remainder(classes);
  if (tensor.dim() == 0) return positions.reshape({});
  std::vector<int64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  const int64_t length = shape[size_t(dim)];
  shape.erase(shape.begin() + dim);
  shape.push_back(length);
  return positions.view(shape).movedim(-1, dim);
}

void attachGuess(const at::Tensor& tensor, const at::Tensor& value) {
  if (!fitsShadow(int64_t(tensor.storage().nbytes()), tensor.scalar_type())) return;
  setValue(tensor, value);
  if (VersionPtr version = versionOf(tensor)) version->guessed = true;
}

void applyGuess(const Call& call, const std::vector<at::Tensor>& outputs) {
  if (outputs.empty() || !outputs[0].defined() || !outputs[0].is_cuda()) return;
  const bool boolean_in = !call.inputs.empty() && call.inputs[0].tensor->scalar_type() == c10::kBool;
  PlainDispatch plain;
  switch (call.info.guess) {
    case Guess::kAllFalse: attachUniform(outputs[0], false); break;
    case Guess::kAllTrue: attachUniform(outputs[0], true); break;
    case Guess::kCompare: guessComparison(call, outputs[0]); break;
    case Guess::kAny: attachUniform(outputs[0], !boolean_in); break;
    case Guess::kAll: attachUniform(outputs[0], true); break;
    case Guess::kCountNonzero:
      if (outputs[0].numel() > 0) attachUniform(outputs[0], call.inputs[0].tensor->numel() / outputs[0].numel());
      break;
    case Guess::kIndices:
      if (!routeTokens(call, outputs)) guessIndices(call, outputs, false);
      break;
    case Guess::kMaskedFill: rememberExclusion(call, outputs[0]); break;
    case Guess::kSortIndices: guessIndices(call, outputs, true); break;
    case Guess::kInfoZero:  // LAPACK's status of a factorisation: success
      for (size_t i = 0; i < outputs.size(); ++i) {
        const std::string& name =
            call.info.op.schema().returns()[std::min(i, call.info.op.schema().returns().size() - 1)].name();
        if (name == "info" || name == "infos") attachUniform(outputs[i], 0);
      }
      break;
    case Guess::kNone:
    case Guess::kKeepFoundInf: break;
  }
}

}  // namespace phantom
