#include "values/RoutedValues.h"

#include "operators/DispatchGuards.h"
#include "values/MoeRouting.h"
#include "values/Values.h"
#include "values/ValueVersion.h"

#include <ATen/ops/zeros.h>

#include <cmath>

namespace phantom {
namespace {

constexpr int64_t kMostExperts = 4096;  // more classes are a vocabulary
constexpr int64_t kMostScores = int64_t(1) << 26;
constexpr double kNeverChosen = -1e4;  // what masks fill with is this or less, or 0 beside sigmoids

const c10::IValue* named(const Call& call, const char* name) {
  for (size_t i = 0; i < call.count; ++i) {
    if (call.info.op.schema().arguments()[i].name() == name) return &call.argument(i);
  }
  return nullptr;
}

bool choosesAlongLast(const Call& call, const at::Tensor& scores) {
  const c10::IValue* dim = named(call, "dim");
  if (dim == nullptr || !dim->isInt()) return false;
  const int64_t wrapped = dim->toInt() < 0 ? dim->toInt() + scores.dim() : dim->toInt();
  const c10::IValue* largest = named(call, "largest");
  return wrapped == scores.dim() - 1 && (largest == nullptr || largest->toBool());
}

bool isChoice(const Call& call) {
  const std::string& base = call.info.base;
  if ((base != "topk" && base != "argmax" && base != "max") || call.inputs.empty()) return false;
  const at::Tensor& scores = *call.inputs[0].tensor;
  return scores.is_cuda() && c10::isFloatingType(scores.scalar_type()) && scores.dim() >= 2 && scores.numel() > 0 &&
         scores.numel() <= kMostScores && scores.size(-1) >= 2 && scores.size(-1) <= kMostExperts &&
         choosesAlongLast(call, scores);
}

std::optional<double> number(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return double(value.toInt());
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() != 1) return std::nullopt;
  const auto known = knownValue(value.toTensor());
  if (!known) return std::nullopt;
  PlainDispatch plain;
  return known->item().toDouble();
}

// bool of (tokens, experts), or undefined if nothing is excluded.
at::Tensor excludedFrom(const at::Tensor& scores) {
  const VersionPtr version = versionOf(scores);
  if (!version || !version->excluded) return at::Tensor();
  PlainDispatch plain;
  const int64_t elements = int64_t(scores.storage().nbytes()) / scores.itemsize();
  at::Tensor flat;
  for (const Exclusion* at = version->excluded.get(); at != nullptr; at = at->earlier.get()) {
    const auto mask = readSource(at->mask);
    if (!mask) continue;
    if (!flat.defined()) flat = at::zeros({elements}, at::TensorOptions().dtype(c10::kBool).device(c10::kCPU));
    at::Tensor part = flat.as_strided(at->sizes, at->strides, at->offset);
    part.logical_or_(mask->expand(at->sizes));
  }
  if (!flat.defined()) return flat;
  return flat.as_strided(scores.sizes(), scores.strides(), scores.storage_offset())
      .contiguous()
      .view({-1, scores.size(-1)});
}

}  // namespace

bool choosesAmongEqualScores(const Call& call) {
  if (!isChoice(call)) return false;
  const VersionPtr version = versionOf(*call.inputs[0].tensor);
  return version && version->state.load(std::memory_order_acquire) == Version::State::kUniform;
}

bool routeTokens(const Call& call, const std::vector<at::Tensor>& outputs) {
  if (!isChoice(call)) return false;
  const at::Tensor& out = outputs.back();
  if (!out.defined() || out.scalar_type() != c10::kLong || out.numel() == 0) return false;
  const int64_t layer = routerLayer();
  if (layer < 0) return false;
  const at::Tensor& scores = *call.inputs[0].tensor;
  const int64_t experts = scores.size(-1);
  const int64_t tokens = scores.numel() / experts;
  const at::Tensor chosen = chooseExperts(tokens, out.numel() / tokens, experts, layer, excludedFrom(scores));
  countRouting(layer, experts, chosen);
  setRoutedValue(out, chosen.view(out.sizes()));
  return true;
}

void rememberExclusion(const Call& call, const at::Tensor& out) {
  if (call.inputs.size() < 2 || !out.defined() || !out.is_cuda() || !c10::isFloatingType(out.scalar_type()) ||
      out.dim() < 2)
    return;
  const auto value = number(*named(call, "value"));
  if (!value || (*value > kNeverChosen && *value != 0.0)) return;
  const at::Tensor& mask = *call.inputs[1].tensor;
  if (!hasValue(mask)) return;
  auto exclusion = std::make_shared<Exclusion>();
  exclusion->mask = sourceOf(mask);
  if (exclusion->mask.host.defined()) exclusion->mask.host = mask.clone();
  exclusion->sizes.assign(out.sizes().begin(), out.sizes().end());
  exclusion->strides.assign(out.strides().begin(), out.strides().end());
  exclusion->offset = out.storage_offset();
  const VersionPtr before = versionOf(*call.inputs[0].tensor);
  if (before && out.sizes() == call.inputs[0].tensor->sizes()) exclusion->earlier = before->excluded;
  setVersion(out, unknownVersion(std::move(exclusion)));
}

}  // namespace phantom
