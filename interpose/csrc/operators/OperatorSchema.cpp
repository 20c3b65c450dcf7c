#include "operators/OperatorSchema.h"

#include <ATen/core/enum_tag.h>

#include <set>

namespace phantom {
namespace {

bool oneOf(const std::set<std::string>& names, const std::string& name) { return names.count(name) != 0; }

// Sizes of the result depend on the value of a float argument.
const std::set<std::string> kFloatsAreSizes = {"arange", "range"};

const std::set<std::string> kAllocatesOnly = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "lift", "lift_fresh"};

// Where packed sequences begin, in the schemas of fused attention.
const std::set<std::string> kOffsets = {"cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k"};

// Index tensors, lengths and the like may live on the host: the CUDA build moves or reads them itself.
const std::set<std::string> kHostTensorsAllowed = {"index",
                                                   "_unsafe_index",
                                                   "index_put",
                                                   "index_put_",
                                                   "_index_put_impl_",
                                                   "_unsafe_index_put",
                                                   "copy_",
                                                   "_to_copy",
                                                   "copy",
                                                   "set_",
                                                   "_pack_padded_sequence",
                                                   "_pack_padded_sequence_backward",
                                                   "_cudnn_rnn",
                                                   "_cudnn_rnn_backward",
                                                   "_ctc_loss",
                                                   "_cudnn_ctc_loss",
                                                   "_foreach_copy_",
                                                   "_foreach_copy",
                                                   "_foreach_div_",
                                                   "_foreach_mul_",
                                                   "_foreach_mul",
                                                   "_foreach_div",
                                                   "_foreach_add_",
                                                   "_foreach_add",
                                                   "_foreach_addcdiv_",
                                                   "_foreach_addcmul_",
                                                   "_foreach_sub_",
                                                   "_foreach_lerp_",
                                                   "_foreach_addcdiv",
                                                   "_foreach_addcmul",
                                                   "tensor_split",
                                                   "repeat_interleave",
                                                   "_fused_sgd_",
                                                   "_fused_adam_",
                                                   "_fused_adamw_",
                                                   "segment_reduce",
                                                   "_segment_reduce_backward",
                                                   "_copy_from_and_resize",
                                                   "_scaled_dot_product_flash_attention_backward",
                                                   "_flash_attention_backward",
                                                   "_scaled_dot_product_efficient_attention_backward",
                                                   "_efficient_attention_backward",
                                                   "_scaled_dot_product_cudnn_attention_backward",
                                                   "_foreach_norm",
                                                   "_histogramdd_from_bin_cts",
                                                   "masked_scatter_",
                                                   "_histogramdd_bin_edges",
                                                   "slow_conv3d_forward",
                                                   "is_same_size",
                                                   "set_data"};

const std::set<std::string> kMatrixProducts = {"mm",
                                               "addmm",
                                               "bmm",
                                               "baddbmm",
                                               "addbmm",
                                               "addmv",
                                               "mv",
                                               "dot",
                                               "vdot",
                                               "addr",
                                               "linear",
                                               "_addmm_activation",
                                               "baddbmm_",
                                               "addmm_",
                                               "addmv_",
                                               "_grouped_mm",
                                               "_scaled_mm",
                                               "_int_mm",
                                               "convolution_overrideable",
                                               "ger"};

Guess guessOf(const std::string& base) {
  static const std::map<std::string, Guess> guesses = {
      {"isnan", Guess::kAllFalse},
      {"isinf", Guess::kAllFalse},
      {"isposinf", Guess::kAllFalse},
      {"isneginf", Guess::kAllFalse},
      {"isfinite", Guess::kAllTrue},
      {"isclose", Guess::kAllTrue},
      {"eq", Guess::kCompare},
      {"ne", Guess::kCompare},
      {"lt", Guess::kCompare},
      {"le", Guess::kCompare},
      {"gt", Guess::kCompare},
      {"ge", Guess::kCompare},
      {"any", Guess::kAny},
      {"all", Guess::kAll},
      {"count_nonzero", Guess::kCountNonzero},
      {"argmax", Guess::kIndices},
      {"argmin", Guess::kIndices},
      {"multinomial", Guess::kIndices},
      {"topk", Guess::kIndices},
      {"sort", Guess::kSortIndices},
      {"argsort", Guess::kSortIndices},
      {"max", Guess::kIndices},
      {"min", Guess::kIndices},
      {"median", Guess::kIndices},
      {"kthvalue", Guess::kIndices},
      {"mode", Guess::kIndices},
      {"randperm", Guess::kSortIndices},
      {"masked_fill", Guess::kMaskedFill},
      {"_amp_foreach_non_finite_check_and_unscale_", Guess::kKeepFoundInf}};
  auto found = guesses.find(base);
  return found == guesses.end() ? Guess::kNone : found->second;
}

ScalarHash scalarHash(const c10::Argument& argument, bool floats_are_sizes, bool elementwise, bool foreach) {
  const auto kind = argument.type()->kind();
  if (kind == c10::TypeKind::OptionalType) {
    const auto& element = argument.type()->castRaw<c10::OptionalType>()->getElementType();
    if (element->kind() == c10::TypeKind::NumberType && elementwise) return ScalarHash::kByType;
    if (element->kind() == c10::TypeKind::FloatType || element->kind() == c10::TypeKind::NumberType) {
      return floats_are_sizes ? ScalarHash::kByValue : ScalarHash::kFloatsByType;
    }
    return ScalarHash::kByValue;
  }
  if (floats_are_sizes) return ScalarHash::kByValue;
  if (kind == c10::TypeKind::NumberType)
    return elementwise || foreach ? ScalarHash::kByType : ScalarHash::kFloatsByType;
  if (kind == c10::TypeKind::FloatType) return ScalarHash::kFloatsByType;
  if (kind == c10::TypeKind::ListType && foreach) {
    const auto& element = argument.type()->castRaw<c10::ListType>()->getElementType();
    if (element->kind() == c10::TypeKind::NumberType) return ScalarHash::kByType;
  }
  return ScalarHash::kByValue;
}

}  // namespace

OperatorInfo::OperatorInfo(const c10::OperatorHandle& handle) : op(handle) {
  const auto& schema = op.schema();
  name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const size_t colon = schema.name().find("::");
  base = colon == std::string::npos ? schema.name() : schema.name().substr(colon + 2);
  const std::string plain = !base.empty() && base.back() == '_' ? base.substr(0, base.size() - 1) : base;
  const bool aten = schema.name().rfind("aten::", 0) == 0;
  const bool foreach = base.rfind("_foreach_", 0) == 0 || base.rfind("_fused_", 0) == 0;
  elementwise = op.hasTag(at::Tag::pointwise) && plain != "pow" && plain != "float_power";
  elementwise = elementwise || base == "zero_" || base == "fill_" || base == "copy_" ||
                (base.rfind("_foreach_", 0) == 0 && base != "_foreach_norm" && base != "_foreach_max");
  changes_metadata = op.hasTag(at::Tag::inplace_view);
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  // `upsample_*` take scale factors as optional floats, which decide sizes only through output_size; arange's do.
  const bool floats_are_sizes = aten && oneOf(kFloatsAreSizes, plain);
  for (const c10::Argument& argument : schema.arguments()) {
    ArgumentInfo info;
    info.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    info.out = info.written && argument.is_out();
    info.scalar = scalarHash(argument, floats_are_sizes, elementwise, foreach);
    info.offsets = aten && base.find("attention") != std::string::npos && oneOf(kOffsets, argument.name());
    cost_by_offsets = cost_by_offsets || info.offsets;
    writes = writes || info.written;
    random = random || argument.type()->str().find("Generator") != std::string::npos;
    arguments.push_back(info);
  }
  if (!aten) return;
  allocates_only = oneOf(kAllocatesOnly, base);
  overwrites_self =
      base == "zero_" || base == "fill_" || base == "copy_" || base == "_foreach_zero_" || base == "_foreach_copy_";
  host_tensors_allowed = oneOf(kHostTensorsAllowed, base);
  matrix_product = oneOf(kMatrixProducts, base);
  fp32_by_tf32 = matrix_product || base.find("conv") != std::string::npos || base.find("rnn") != std::string::npos;
  guess = guessOf(plain == base ? base : plain);
  for (const c10::Argument& result : schema.returns()) {
    if (guess == Guess::kNone && (result.name() == "info" || result.name() == "infos")) guess = Guess::kInfoZero;
  }
  if (base == "_amp_foreach_non_finite_check_and_unscale_") guess = Guess::kKeepFoundInf;
}

}  // namespace phantom
