// The operations of c10d::Backend on the nccl process group: checks and shapes; distributed/ProcessGroupNccl.cpp posts them.
#include "distributed/ProcessGroupNccl.h"

#include "core/Device.h"
#include "distributed/ProcessGroupChecks.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace phantom {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// A buffer for all tensors of a list, one after the other (newLikeFlat in torch/csrc/distributed/c10d/Utils.hpp).
at::Tensor flatLike(const Tensors& tensors) {
  const at::Tensor& t = tensors.front();
  std::vector<int64_t> sizes{int64_t(tensors.size())}, strides{t.numel()};
  sizes.insert(sizes.end(), t.sizes().begin(), t.sizes().end());
  strides.insert(strides.end(), t.strides().begin(), t.strides().end());
  return at::empty_strided(sizes, strides, t.options().memory_format(std::nullopt));
}

at::Tensor realView(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

void checkReducible(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  TORCH_CHECK(type != at::kFloat8_e4m3fnuz && type != at::kFloat8_e5m2fnuz,
              "Unsupported Float8 type for NCCL reduction");
}

std::vector<int64_t> splitLengths(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size) {
  std::vector<int64_t> lengths(size_t(size), 0), offsets(size_t(size), 0);
  c10d::computeLengthsAndOffsets(splits, tensor, &lengths, &offsets);
  return lengths;
}

std::function<void(const std::string&)> invalid(const char* operation) {
  return [operation](const std::string& text) {
    C10_THROW_ERROR(ValueError, std::string("ProcessGroupNCCL::") + operation + ": " + text);
  };
}

}  // namespace

WorkPtr ProcessGroupNccl::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  at::Tensor tensor = tensors.back();
  if (tensor.is_complex()) {
    TORCH_CHECK(c10d::isComplexViewAsRealAllowed(opts.reduceOp), "all_reduce does not support ", int(opts.reduceOp.op_),
                " on complex tensors");
    tensor = at::view_as_real(tensor);
  }
  checkNcclTensor(tensor);
  checkReducible(tensor);
  Call call;
  call.kind = "all_reduce";
  call.type = OpType::ALLREDUCE;
  call.title = "nccl:all_reduce";
  call.inputs = call.outputs = {tensor};
  call.reduce = opts.reduceOp;
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions&) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  C10_THROW_ERROR(Error, "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.");
}

WorkPtr ProcessGroupNccl::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  checkSameDevice(tensors);
  checkReducible(tensors.back());
  std::vector<Call> calls;
  for (const at::Tensor& tensor : tensors) {
    checkNcclType(tensor.scalar_type());
    ncclReduceOp(opts.reduceOp, tensor.scalar_type());
    Call call;
    call.kind = "all_reduce";
    call.title = "nccl:allreduce_coalesced";
    call.inputs = call.outputs = {tensor};
    call.reduce = opts.reduceOp;
    calls.push_back(std::move(call));
  }
  return collectives(std::move(calls), opts.asyncOp, OpType::COALESCED, "nccl:allreduce_coalesced");
}

WorkPtr ProcessGroupNccl::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  const at::Tensor tensor = realView(tensors.back());
  checkNcclTensor(tensor);
  Call call;
  call.kind = "broadcast";
  call.type = OpType::BROADCAST;
  call.title = "nccl:broadcast";
  call.inputs = call.outputs = {tensor};
  call.root = opts.rootRank + opts.rootTensor;
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  at::Tensor tensor = tensors.back();
  if (tensor.is_complex()) {
    TORCH_CHECK(c10d::isComplexViewAsRealAllowed(opts.reduceOp), "reduce does not support ", int(opts.reduceOp.op_),
                " on complex tensors");
    tensor = at::view_as_real(tensor);
  }
  checkNcclTensor(tensor);
  Call call;
  call.kind = "reduce";
  call.type = OpType::REDUCE;
  call.title = "nccl:reduce";
  call.inputs = call.outputs = {tensor};
  call.reduce = opts.reduceOp;
  call.root = opts.rootRank + opts.rootTensor;
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK(inputs.size() == 1, kMultiDeviceError);
  const at::Tensor input = inputs.back();
  checkNcclTensor(input);
  const Tensors list = outputs.back();
  Call call;
  call.kind = "all_gather";
  call.type = OpType::ALLGATHER;
  call.title = "nccl:all_gather";
  if (!checkSameSize(list)) {  // torch broadcasts each part within one group
    call.lists = true;
    call.inputs = {input.contiguous()};
    call.outputs = list;
    return collective(std::move(call), opts.asyncOp);
  }
  const at::Tensor flat = flatLike(list);
  call.inputs = {input.contiguous()};
  call.outputs = {flat};
  call.stash = list;
  call.after = [flat, list] {
    for (size_t j = 0; j < list.size(); ++j) list[j].copy_(flat.select(0, int64_t(j)), /*non_blocking=*/true);
  };
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  checkNcclTensor(input);
  checkNcclTensor(output);
  if (input.dtype() != output.dtype())
    C10_THROW_ERROR(TypeError, "output tensor must have the same type as input tensor");
  if (input.numel() * size_ != output.numel()) {
    C10_THROW_ERROR(ValueError, "output tensor size must be equal to world_size times input tensor size");
  }
  Call call;
  call.kind = "all_gather";
  call.type = OpType::_ALLGATHER_BASE;
  call.title = "nccl:_all_gather_base";
  call.inputs = {realView(input)};
  call.outputs = {realView(output)};
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::allgather_coalesced(TensorLists&, Tensors&, const c10d::AllgatherOptions&) {
  C10_THROW_ERROR(NotImplementedError, "ProcessGroupNCCL does not support allgather_coalesced");
}

WorkPtr ProcessGroupNccl::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& opts) {
  std::vector<Call> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    checkNcclTensor(inputs[i]);
    checkNcclTensor(outputs[i]);
    checkNcclType(inputs[i].scalar_type());
    Call call;
    call.kind = "all_gather";
    call.title = "nccl:all_gather_into_tensor_coalesced";
    call.inputs = {inputs[i]};
    call.outputs = {outputs[i]};
    calls.push_back(std::move(call));
  }
  TORCH_CHECK_VALUE(!calls.empty(), "Tensor list must be nonempty");
  return collectives(std::move(calls), opts.asyncOp, OpType::COALESCED, "nccl:all_gather_into_tensor_coalesced");
}

WorkPtr ProcessGroupNccl::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK(outputs.size() == 1, kMultiDeviceError);
  at::Tensor output = outputs.back();
  checkNcclTensor(output);
  checkReducible(output);
  const Tensors list = inputs.back();
  if (!checkSameSize(list)) {  // torch reduces each part to its rank within one group
    std::vector<Call> calls;
    for (size_t i = 0; i < list.size(); ++i) {
      ncclReduceOp(opts.reduceOp, list[i].scalar_type());
      Call call;
      call.kind = "reduce";
      call.title = "nccl:reduce_scatter";
      call.inputs = {list[i]};
      call.outputs = {int(i) == getRank() ? output : list[i]};
      call.reduce = opts.reduceOp;
      call.root = int64_t(i);
      calls.push_back(std::move(call));
    }
    return collectives(std::move(calls), opts.asyncOp, OpType::REDUCE_SCATTER, "nccl:reduce_scatter");
  }
  const at::Tensor flat = flatLike(list);
  Call call;
  call.kind = "reduce_scatter";
  call.type = OpType::REDUCE_SCATTER;
  call.title = "nccl:reduce_scatter";
  call.inputs = {flat};
  call.outputs = {output.contiguous()};
  call.stash = list;
  call.reduce = opts.reduceOp;
  call.before = [flat, list] {
    for (size_t j = 0; j < list.size(); ++j) flat.select(0, int64_t(j)).copy_(list[j], /*non_blocking=*/true);
  };
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& opts) {
  if (input.dtype() != output.dtype()) {
    C10_THROW_ERROR(TypeError, "input tensor must be the same type as the output tensor.");
  }
  if (input.numel() != output.numel() * size_) {
    C10_THROW_ERROR(ValueError, "input tensor must be the same size as output size times world size");
  }
  checkNcclTensor(input);
  checkNcclTensor(output);
  checkReducible(output);
  Call call;
  call.kind = "reduce_scatter";
  call.type = OpType::_REDUCE_SCATTER_BASE;
  call.title = "nccl:_reduce_scatter_base";
  call.inputs = {realView(input)};
  call.outputs = {realView(output)};
  call.reduce = opts.reduceOp;
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& opts) {
  std::vector<Call> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    checkNcclTensor(inputs[i]);
    checkNcclTensor(outputs[i]);
    checkReducible(inputs[i]);
    checkNcclType(inputs[i].scalar_type());
    ncclReduceOp(opts.reduceOp, inputs[i].scalar_type());
    Call call;
    call.kind = "reduce_scatter";
    call.title = "nccl:reduce_scatter_tensor_coalesced";
    call.inputs = {inputs[i]};
    call.outputs = {outputs[i]};
    call.reduce = opts.reduceOp;
    calls.push_back(std::move(call));
  }
  TORCH_CHECK_VALUE(!calls.empty(), "Tensor list must be nonempty");
  return collectives(std::move(calls), opts.asyncOp, OpType::COALESCED, "nccl:reduce_scatter_tensor_coalesced");
}

WorkPtr ProcessGroupNccl::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  checkNcclTensor(output);
  checkNcclTensor(input);
  Call call;
  call.kind = "all_to_all";
  call.type = OpType::ALLTOALL_BASE;
  call.title = "nccl:all_to_all";
  call.inputs = {realView(input)};
  call.outputs = {realView(output)};
  if (!output_splits.empty() || !input_splits.empty()) {
    c10d::checkSplitSizes(input_splits, input, size_);
    c10d::checkSplitSizes(output_splits, output, size_);
    call.in_splits = splitLengths(input_splits, call.inputs[0], size_);
    call.out_splits = splitLengths(output_splits, call.outputs[0], size_);
  }
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  TORCH_CHECK_VALUE(!outputs.empty() && outputs.size() == inputs.size(), "Tensor list must be nonempty");
  Call call;
  for (size_t r = 0; r < outputs.size(); ++r) {
    checkNcclTensor(outputs[r]);
    checkNcclTensor(inputs[r]);
    TORCH_CHECK(outputs[0].device() == outputs[r].device() && outputs[0].device() == inputs[r].device(),
                "Tensors must be on the same device");
    call.in_splits.push_back(inputs[r].numel());
    call.out_splits.push_back(outputs[r].numel());
  }
  call.kind = "all_to_all";
  call.type = OpType::ALLTOALL;
  call.title = "nccl:all_to_all";
  call.inputs = inputs;
  call.outputs = outputs;
  call.lists = true;
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const auto fail = invalid("gather");
  c10d::assertRootRank(fail, opts.rootRank, size_);
  TORCH_CHECK(inputs.size() == 1, kMultiDeviceError);
  const at::Tensor input = inputs.back();
  checkNcclTensor(input);
  Call call;
  call.kind = "gather";
  call.type = OpType::GATHER;
  call.title = "nccl:gather";
  call.inputs = {input};
  call.root = opts.rootRank;
  if (getRank() == opts.rootRank) {
    c10d::assertGatherOutputTensorList(fail, outputs, size_);
    c10d::assertTypeAndSizesMatch(fail, outputs[0], input.options(), input.sizes());
    call.outputs = outputs[0];
  } else {
    c10d::assertEmptyOutputTensorList(fail, outputs);
  }
  return collective(std::move(call), opts.asyncOp);
}

#ifdef C10D_BACKEND_HAS_HOOKS
WorkPtr ProcessGroupNccl::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  c10d::assertRootRank(invalid("gather_single"), opts.rootRank, size_);
  checkNcclTensor(input);
  Call call;
  call.kind = "gather";
  call.type = OpType::GATHER;
  call.title = "nccl:gather_single";
  call.inputs = {input};
  call.root = opts.rootRank;
  if (getRank() == opts.rootRank) {
    checkNcclTensor(output);
    TORCH_CHECK_VALUE(output.numel() == input.numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
    call.outputs = {output};
  }
  return collective(std::move(call), opts.asyncOp);
}
#endif

WorkPtr ProcessGroupNccl::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  const auto fail = invalid("scatter");
  c10d::assertRootRank(fail, opts.rootRank, size_);
  TORCH_CHECK(outputs.size() == 1, kMultiDeviceError);
  const at::Tensor output = outputs.back();
  Call call;
  call.kind = "scatter";
  call.type = OpType::SCATTER;
  call.title = "nccl:scatter";
  call.outputs = {output};
  call.root = opts.rootRank;
  if (getRank() == opts.rootRank) {
    c10d::assertScatterInputTensorList(fail, inputs, size_);
    c10d::assertTypeAndSizesMatch(fail, inputs[0], output.options(), output.sizes());
    call.inputs = inputs[0];
  } else {
    c10d::assertEmptyInputTensorList(fail, inputs);
  }
  checkNcclTensor(output);
  return collective(std::move(call), opts.asyncOp);
}

WorkPtr ProcessGroupNccl::send(Tensors& tensors, int peer, int) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  checkNcclTensor(tensors.back(), true);
  return pointToPoint({realView(tensors.back()), peer, true});
}

WorkPtr ProcessGroupNccl::recv(Tensors& tensors, int peer, int) {
  TORCH_CHECK(tensors.size() == 1, kMultiDeviceError);
  checkNcclTensor(tensors.back(), true);
  return pointToPoint({realView(tensors.back()), peer, false});
}

WorkPtr ProcessGroupNccl::recvAnysource(Tensors&, int) {
  C10_THROW_ERROR(NotImplementedError, "ProcessGroupNCCL does not support recvAnysource");
}

WorkPtr ProcessGroupNccl::barrier(const c10d::BarrierOptions& opts) {
  const c10::DeviceIndex index = opts.device_ids.empty() ? guessDevice() : c10::DeviceIndex(opts.device_ids[0]);
  Call call;
  call.kind = "barrier";
  call.type = OpType::ALLREDUCE;
  call.title = "nccl:all_reduce_barrier";
  call.inputs =
      call.outputs = {at::zeros({1}, at::TensorOptions().device(c10::Device(c10::kCUDA, index)).dtype(at::kFloat))};
  WorkPtr work = collective(std::move(call), opts.asyncOp);
  if (opts.asyncOp) {
    auto* own = dynamic_cast<WorkNccl*>(work.get());
    TORCH_CHECK(own != nullptr, "barrier within a coalescing block");
    own->is_barrier_ = true;
    return work;
  }
  synchronize(streamTail(index, currentStream(index)), "barrier");  // the host waits
  return nullptr;
}

}  // namespace phantom
