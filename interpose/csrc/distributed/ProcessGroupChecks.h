// Argument checks of the nccl process group, with ProcessGroupNCCL's own texts (torch 2.9 to 2.14).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace phantom {

inline constexpr const char* kMultiDeviceError =
    "Expecting one tensor only but got multiple. You are probably using multiple devices under one thread. The support "
    "for "
    "such usage has been deprecated. For details, please refer to "
    "https://pytorch.org/docs/stable/distributed.html#multi-gpu-collective-functions. ProcessGroupNCCL continues "
    "supporting multi-process and multi-thread modes.";

inline void checkNcclTensor(const at::Tensor& tensor, bool p2p = false) {
  if (!tensor.is_cuda() || tensor.is_sparse()) C10_THROW_ERROR(ValueError, "Tensors must be CUDA and dense");
  if (tensor.is_contiguous(tensor.suggest_memory_format())) return;
  if (!p2p) C10_THROW_ERROR(ValueError, "Tensors must be contiguous");
  TORCH_WARN_ONCE(
      "Detected non-contiguous tensor in P2P operations. It is user responsibility to guarantee that source and "
      "destination tensors have the same contiguity format.");
}

inline void checkSameDevice(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) C10_THROW_ERROR(ValueError, "Tensor list must be nonempty");
  for (const at::Tensor& t : tensors) {
    if (!t.is_cuda() || t.is_sparse()) C10_THROW_ERROR(ValueError, "Tensors must be CUDA and dense");
    if (t.scalar_type() != tensors.front().scalar_type())
      C10_THROW_ERROR(TypeError, "Tensors must have identical type");
    if (!t.is_non_overlapping_and_dense()) C10_THROW_ERROR(ValueError, "Tensors must be non-overlapping and dense");
    TORCH_CHECK_WITH(ValueError, t.get_device() == tensors.front().get_device(),
                     "Expected list of tensors on the same device");
  }
}

inline bool checkSameSize(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) {
    if (!t.is_same_size(tensors.front())) return false;
    if (!t.is_contiguous(t.suggest_memory_format())) C10_THROW_ERROR(ValueError, "Tensors must be contiguous");
  }
  return true;
}

// ncclDataType_t knows no 16-bit integers and no complex numbers.
inline void checkNcclType(at::ScalarType type) {
  switch (type) {
    case at::kChar:
    case at::kByte:
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBool:
    case at::kBFloat16:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
    case at::kUInt32:
    case at::kUInt64: return;
    default:
      C10_THROW_ERROR(TypeError, std::string("Input tensor data type is not supported for NCCL process group: ") +
                                     c10::toString(type));
  }
}

// The name of a reduction in a COLLECTIVE record, after NCCL's substitutions for bool (torch/csrc/.../NCCLUtils).
inline const char* ncclReduceOp(const c10d::ReduceOp& op, at::ScalarType type) {
  const bool is_bool = type == at::kBool;
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return is_bool ? "max" : "sum";
    case c10d::ReduceOp::PRODUCT: return is_bool ? "min" : "product";
    case c10d::ReduceOp::MIN: return "min";
    case c10d::ReduceOp::MAX: return "max";
    case c10d::ReduceOp::AVG:
      if (is_bool) C10_THROW_ERROR(TypeError, "Cannot use ReduceOp.AVG with Boolean inputs");
      return "avg";
    case c10d::ReduceOp::PREMUL_SUM:
      if (type != at::kHalf && type != at::kFloat && type != at::kBFloat16 && type != at::kDouble) {
        C10_THROW_ERROR(TypeError, "PreMulSum Data type must be half, float, bfloat16 or double");
      }
      return "premul_sum";
    case c10d::ReduceOp::BAND: C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BAND with NCCL");
    case c10d::ReduceOp::BOR: C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BOR with NCCL");
    case c10d::ReduceOp::BXOR: C10_THROW_ERROR(ValueError, "Cannot use ReduceOp.BXOR with NCCL");
    default: C10_THROW_ERROR(ValueError, "Unhandled ReduceOp");
  }
}

}  // namespace phantom
