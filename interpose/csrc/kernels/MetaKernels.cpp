// Meta kernels for operators that only the CUDA build implements and that torch gives none: what they return.
#include "operators/OperatorCall.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>

namespace phantom {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

c10::ScalarType accumulated(const at::Tensor& t) {
  return t.scalar_type() == c10::kHalf || t.scalar_type() == c10::kBFloat16 ? c10::kFloat : t.scalar_type();
}

at::Tensor perChannel(const at::Tensor& input, c10::ScalarType dtype) {
  return at::empty({input.size(1)}, input.options().dtype(dtype));
}

std::tuple<at::Tensor, at::Tensor> batchNormStats(const at::Tensor& input, double) {
  return {perChannel(input, accumulated(input)), perChannel(input, accumulated(input))};
}

at::Tensor batchNormElemt(const at::Tensor& input, const OptionalTensor&, const OptionalTensor&, const at::Tensor&,
                          const at::Tensor&, double) {
  return at::empty_like(input);
}

std::tuple<at::Tensor, at::Tensor> batchNormGatherStats(const at::Tensor& input, const at::Tensor&, const at::Tensor&,
                                                        const OptionalTensor&, const OptionalTensor&, double, double,
                                                        int64_t) {
  return {perChannel(input, accumulated(input)), perChannel(input, accumulated(input))};
}

std::tuple<at::Tensor, at::Tensor> batchNormGatherStatsWithCounts(const at::Tensor& input, const at::Tensor&,
                                                                  const at::Tensor&, const OptionalTensor&,
                                                                  const OptionalTensor&, double, double,
                                                                  const at::Tensor&) {
  return {perChannel(input, accumulated(input)), perChannel(input, accumulated(input))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batchNormBackwardReduce(
    const at::Tensor&, const at::Tensor& input, const at::Tensor& mean, const at::Tensor&, const OptionalTensor& weight,
    bool input_g, bool weight_g, bool bias_g) {
  at::Tensor none;
  const auto dtype = weight && weight->defined() ? weight->scalar_type() : input.scalar_type();
  return {input_g ? at::empty_like(mean) : none, input_g ? at::empty_like(mean) : none,
          weight_g ? perChannel(input, dtype) : none, bias_g ? perChannel(input, dtype) : none};
}

at::Tensor batchNormBackwardElemt(const at::Tensor&, const at::Tensor& input, const at::Tensor&, const at::Tensor&,
                                  const OptionalTensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  return at::empty_like(input);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> cudnnRnnBackward(
    const at::Tensor& input, at::TensorList weight, int64_t, const at::Tensor&, const at::Tensor& hx,
    const OptionalTensor& cx, const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    int64_t, int64_t, int64_t, int64_t, bool, double, bool, bool, at::IntArrayRef, const OptionalTensor&,
    const at::Tensor&, std::array<bool, 4> mask) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& w : weight) weights.push_back(mask[3] ? at::empty_like(w) : at::Tensor());
  const bool cell = cx && cx->defined();
  return {mask[0] ? at::empty_like(input) : at::Tensor(), mask[1] ? at::empty_like(hx) : at::Tensor(),
          cell && mask[2] ? at::empty_like(*cx) : at::Tensor(), weights};
}

std::tuple<at::Tensor, at::Tensor> gruCell(const at::Tensor&, const at::Tensor&, const at::Tensor& hx,
                                           const OptionalTensor&, const OptionalTensor&) {
  return {at::empty_like(hx), at::empty({hx.size(0), hx.size(1) * 5}, hx.options())};  // the workspace holds five gates
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gruCellBackward(const at::Tensor& grad,
                                                                                       const at::Tensor&,
                                                                                       bool has_bias) {
  const auto gates = [&] { return at::empty({grad.size(0), grad.size(1) * 3}, grad.options()); };
  const auto bias = [&] { return has_bias ? at::empty({grad.size(1) * 3}, grad.options()) : at::Tensor(); };
  return {gates(), gates(), at::empty_like(grad), bias(), bias()};
}

bool no(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool noWithTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t) {
  return false;
}

bool useCudnnCtc(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef input_lengths,
                 at::IntArrayRef target_lengths, int64_t blank) {
  // As ATen/native/cudnn/LossCTC.cpp documents: the flat int32 host layout only, short labels, blank 0, full lengths.
  bool use = blank == 0 && targets.dim() == 1 && log_probs.scalar_type() == c10::kFloat &&
             targets.scalar_type() == c10::kInt && targets.is_cpu() && log_probs.is_cuda() && log_probs.dim() == 3;
  for (size_t i = 0; use && i < input_lengths.size(); ++i) {
    use = input_lengths[i] == log_probs.size(0) && target_lengths[i] < 256 && target_lengths[i] <= input_lengths[i];
  }
  return use;
}

std::tuple<at::Tensor, at::Tensor> cudnnCtc(const at::Tensor& log_probs, const at::Tensor&, at::IntArrayRef,
                                            at::IntArrayRef, int64_t, bool, bool) {
  return {at::empty({log_probs.size(1)}, log_probs.options()), at::empty_like(log_probs)};
}

at::Tensor cudnnGridSampler(const at::Tensor& input, const at::Tensor& grid) {
  return at::empty({input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.options());
}

std::tuple<at::Tensor, at::Tensor> cudnnGridSamplerBackward(const at::Tensor& input, const at::Tensor& grid,
                                                            const at::Tensor&) {
  return {at::empty_like(input), at::empty_like(grid)};
}

at::Tensor cudnnAffineGrid(const at::Tensor& theta, int64_t n, int64_t, int64_t h, int64_t w) {
  return at::empty({n, h, w, 2}, theta.options());
}

at::Tensor cudnnAffineGridBackward(const at::Tensor& grad, int64_t n, int64_t, int64_t, int64_t) {
  return at::empty({n, 2, 3}, grad.options());
}

}  // namespace

void registerMetaKernels() {
  using c10::KernelFunction;
  auto meta = [](const char* name, KernelFunction kernel) {
    registerKernel(name, c10::DispatchKey::Meta, std::move(kernel));
  };
  meta("batch_norm_stats", KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormStats));
  meta("batch_norm_elemt", KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormElemt));
  meta("batch_norm_gather_stats", KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormGatherStats));
  meta("batch_norm_gather_stats_with_counts",
       KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormGatherStatsWithCounts));
  meta("batch_norm_backward_reduce", KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormBackwardReduce));
  meta("batch_norm_backward_elemt", KernelFunction::makeFromUnboxedRuntimeFunction(&batchNormBackwardElemt));
  meta("_cudnn_rnn_backward", KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnRnnBackward));
  meta("_thnn_fused_gru_cell", KernelFunction::makeFromUnboxedRuntimeFunction(&gruCell));
  meta("_thnn_fused_gru_cell_backward", KernelFunction::makeFromUnboxedRuntimeFunction(&gruCellBackward));
  meta("cudnn_grid_sampler", KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnGridSampler));
  meta("cudnn_grid_sampler_backward", KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnGridSamplerBackward));
  meta("cudnn_affine_grid_generator", KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnAffineGrid));
  meta("cudnn_affine_grid_generator_backward",
       KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnAffineGridBackward));
  meta("_cudnn_ctc_loss", KernelFunction::makeFromUnboxedRuntimeFunction(&cudnnCtc));
  registerKernel("_use_cudnn_ctc_loss.Tensor", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&noWithTensors));
  registerKernel("_use_miopen_ctc_loss", c10::DispatchKey::CUDA, KernelFunction::makeFromUnboxedRuntimeFunction(&no));
  registerKernel("_use_miopen_ctc_loss.Tensor", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&noWithTensors));
  registerKernel("_use_cudnn_ctc_loss", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&useCudnnCtc));
}

}  // namespace phantom
