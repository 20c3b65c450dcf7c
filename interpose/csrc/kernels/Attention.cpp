// Which kernel scaled_dot_product_attention takes: the CUDA build's rules, for the simulated GPU.
//
// Source of the rules: PyTorch's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; those shared with the CPU come from
// its installed header.
#include "core/Config.h"
#include "operators/OperatorCall.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <cmath>
#include <cstdlib>
#include <mutex>

namespace phantom {
namespace {

using sdp::sdp_params;

int capability() { return config().device.major * 10 + config().device.minor; }

bool halfPrecision(const sdp_params& p) {
  const auto dtype = p.query.scalar_type();
  const bool known = dtype == c10::kHalf || (dtype == c10::kBFloat16 && capability() >= 80);
  return known && p.key.scalar_type() == dtype && p.value.scalar_type() == dtype;
}

bool supportedGpu(int least) { return capability() >= least && capability() <= 121; }

bool flashHeadDim(const sdp_params& p) {
  const int64_t d = p.query.size(-1);
  if (d != p.key.size(-1) || d != p.value.size(-1) || d > 256) return false;
  const int sm = capability();
  const bool small_shared_memory = sm == 86 || sm == 89 || sm == 120 || sm == 121;
  if (!sdp::input_requires_grad(p) || !small_shared_memory) return true;
  return d <= 192 || (d > 224 && !(p.dropout > 0));
}

bool flash(const sdp_params& p) {
  if (!sdp::check_runtime_disabled_flash(p, false) || !sdp::check_tensor_shapes(p, false) ||
      !sdp::check_for_attn_mask(p, false))
    return false;
  if (!flashHeadDim(p) || !supportedGpu(80) || !halfPrecision(p)) return false;
  if (p.is_causal && p.query.size(-2) != p.key.size(-2)) return false;
  return sdp::check_batch_size_and_num_heads_dense<true, true>(p, false) &&
         sdp::check_nonzero_sequence_lengths_dense(p, false) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(p, false);
}

int64_t gemmAlignment(const sdp_params& p) {
  const bool half = p.query.scalar_type() == c10::kHalf || p.query.scalar_type() == c10::kBFloat16;
  const int major = config().device.major;
  const bool tensor_cores = major >= 8 || (major >= 7 && half);
  const int64_t least = major >= 8 ? 4 : 1;
  return tensor_cores ? std::max<int64_t>(least, 128 / (half ? 16 : 32)) : least;
}

bool alignedAt(const at::Tensor& t, int64_t bytes) {
  return t.numel() == 0 || t.storage_offset() * int64_t(t.element_size()) % bytes == 0;
}

bool efficient(const sdp_params& p) {
  if (!sdp::check_runtime_disabled_mem_efficient(p, false) || !supportedGpu(50) || !sdp::check_tensor_shapes(p, false))
    return false;
  const int64_t alignment = gemmAlignment(p);
  const int64_t d = p.query.size(-1), d_value = p.value.size(-1);
  if (d != p.key.size(-1) || d <= 0 || d % alignment != 0 || d_value <= 0 || d_value % alignment != 0) return false;
  if (capability() >= 80) {
    const int64_t bytes = alignment * int64_t(p.query.element_size());
    if (!alignedAt(p.query, bytes) || !alignedAt(p.key, bytes) || !alignedAt(p.value, bytes)) return false;
  }
  if (!sdp::check_nonzero_sequence_lengths_dense(p, false) ||
      !sdp::check_last_dim_stride_equals_1_dense<false>(p, false) ||
      !sdp::check_batch_size_and_num_heads_dense<true, true>(p, false)) {
    return false;
  }
  const auto dtype = p.query.scalar_type();
  const bool known = dtype == c10::kHalf || dtype == c10::kFloat || (dtype == c10::kBFloat16 && capability() >= 80);
  return known && p.key.scalar_type() == dtype && p.value.scalar_type() == dtype;
}

bool cudnnShapes(const sdp_params& p, long cudnn) {
  if (p.query.size(0) > 65535 || p.query.size(1) > 65535) return false;
  const int64_t d = p.query.size(3), d_value = p.value.size(3);
  const bool datacenter = capability() == 90 || config().device.major == 10;
  int64_t most = 128;
  if (datacenter && cudnn >= 91100 && d == 192 && d_value == 128) most = 192;
  if (d > most || d_value > most || d % 8 != 0 || d_value % 8 != 0) return false;
  return p.key.size(2) != 1 && !(p.dropout != 0 && p.query.size(2) == 1);
}

bool cudnn(const sdp_params& p) {
  const long version = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  if (version < 90000 || (p.dropout > 0 && version > 91100 && version < 91400)) return false;
  if (!at::globalContext().userEnabledCuDNNSDP() || !sdp::check_tensor_shapes(p, false)) return false;
  if (at::globalContext().deterministicAlgorithms() && !at::globalContext().deterministicAlgorithmsWarnOnly())
    return false;
  if (!halfPrecision(p) || !sdp::check_attn_mask_shape(p, false) || !supportedGpu(80)) return false;
  if (p.dropout * 16.0 != std::floor(p.dropout * 16.0)) return false;
  return sdp::check_nonzero_sequence_lengths_dense(p, false) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(p, false) &&
         sdp::check_batch_size_and_num_heads_dense<true, false>(p, false) && cudnnShapes(p, version);
}

// On Hopper and Blackwell with a recent cuDNN its attention comes first; the script may change the order later.
void preferCudnnOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* deprioritized = std::getenv("TORCH_CUDNN_SDPA_DEPRIORITIZED");
    const bool datacenter = config().device.major == 9 || config().device.major == 10;
    if ((deprioritized != nullptr && std::string(deprioritized) == "1") || !datacenter) return;
    if (at::detail::getCUDAHooks().versionRuntimeCuDNN() <= 91500) return;
    at::globalContext().setSDPPriorityOrder(
        {int64_t(at::SDPBackend::cudnn_attention), int64_t(at::SDPBackend::flash_attention),
         int64_t(at::SDPBackend::efficient_attention), int64_t(at::SDPBackend::math)});
  });
}

int64_t chooseAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double>,
                        bool gqa) {
  const sdp_params p{query, key, value, mask, dropout, causal, gqa};
  preferCudnnOnce();
  const auto& context = at::globalContext();
  // The CPU as the device: its flash kernel knows no dropout (native/transformers/sdp_utils_cpp.cpp, check_for_dropout).
  if (config().blocking_launches && dropout > 0 && context.userEnabledMathSDP()) return int64_t(at::SDPBackend::math);
  for (at::SDPBackend backend : at::globalContext().sDPPriorityOrder()) {
    switch (backend) {
      case at::SDPBackend::cudnn_attention:
        if (cudnn(p)) return int64_t(backend);
        break;
      case at::SDPBackend::flash_attention:
        if (flash(p)) return int64_t(backend);
        break;
      case at::SDPBackend::efficient_attention:
        if (efficient(p)) return int64_t(backend);
        break;
      case at::SDPBackend::math:
        if (context.userEnabledMathSDP()) return int64_t(backend);
        break;
      default: break;
    }
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

}  // namespace

void registerAttention() {
  registerKernel("_fused_sdp_choice", c10::DispatchKey::CUDA,
                 c10::KernelFunction::makeFromUnboxedRuntimeFunction(&chooseAttention));
  // scaled_dot_product_attention asks this stub in C++; the CPU build leaves its CUDA entry empty and would then take math.
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&chooseAttention);
}

}  // namespace phantom
