// Sparse tensors on the virtual GPU, as far as sparse embedding gradients need them: what only handles their two dense
// parts is PyTorch's own code for the CPU, which calls back into the dense kernels here; what computes is priced.
#include "core/Device.h"
#include "operators/OperatorCall.h"
#include "time/Timeline.h"
#include "values/Values.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>

namespace phantom {
namespace {

void asOnCpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), stack);
}

void asOnDenseCpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// All indices are taken to be distinct: the number of entries is not known without the real data.
at::Tensor coalesce(const at::Tensor& self) {
  const at::Tensor values = self._values();
  launchNamed("aten::_coalesce", {self._indices(), values}, {values}, self.device());
  synchronize(streamTail(self.device().index(), currentStream(self.device().index())), "coalesce");
  at::Tensor out = at::_sparse_coo_tensor_unsafe(self._indices(), values, self.sizes());
  out._coalesced_(true);
  return out;
}

void addInto(const at::Tensor& dense, const at::Tensor& sparse) {
  launchNamed("aten::index_add_", {dense, sparse._indices(), sparse._values()}, {dense}, dense.device());
  dropValue(dense);
}

at::Tensor& addSparseInPlace(at::Tensor& self, const at::Tensor& other, const at::Scalar&) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_sparse() && other.is_sparse(),
                              "add_ of these layouts is not supported on the virtual GPU");
  addInto(self, other);
  return self;
}

at::Tensor addSparse(const at::Tensor& self, const at::Tensor& other, const at::Scalar&) {
  const at::Tensor& dense = self.is_sparse() ? other : self;
  const at::Tensor& sparse = self.is_sparse() ? self : other;
  TORCH_CHECK_NOT_IMPLEMENTED(!dense.is_sparse(), "add of two sparse tensors is not supported on the virtual GPU");
  at::Tensor out = at::empty_like(dense);
  addInto(out, sparse);
  return out;
}

}  // namespace

void registerSparse() {
  using c10::KernelFunction;
  auto sparse = [](const char* name, KernelFunction kernel) {
    registerKernel(name, c10::DispatchKey::SparseCUDA, std::move(kernel));
  };
  for (const char* name : {"_sparse_coo_tensor_with_dims",
                           "_sparse_coo_tensor_with_dims_and_tensors",
                           "_indices",
                           "_values",
                           "indices",
                           "values",
                           "_nnz",
                           "_dimI",
                           "_dimV",
                           "sparse_dim",
                           "dense_dim",
                           "is_coalesced",
                           "_coalesced_",
                           "clone",
                           "zero_",
                           "mul_.Scalar",
                           "empty.memory_format",
                           "copy_sparse_to_sparse_",
                           "sparse_resize_",
                           "sparse_resize_and_clear_",
                           "_to_copy"}) {
    const std::string text = name;
    const size_t dot = text.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)});
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::SparseCPU)) continue;
    sparse(name, KernelFunction::makeFromBoxedFunction<&asOnCpu>());
  }
  // nonzero and index_select on the dense tensor: the same function as in the CUDA build.
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim"}) {
    registerKernel(name, c10::DispatchKey::CUDA, KernelFunction::makeFromBoxedFunction<&asOnDenseCpu>());
  }
  sparse("_coalesce", KernelFunction::makeFromUnboxedRuntimeFunction(&coalesce));
  sparse("add.Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&addSparse));
  sparse("add_.Tensor", KernelFunction::makeFromUnboxedRuntimeFunction(&addSparseInPlace));
}

}  // namespace phantom
