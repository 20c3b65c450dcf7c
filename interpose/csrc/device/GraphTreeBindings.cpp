// What torch/_inductor/cudagraph_trees.py needs of torch._C and only CUDA builds have (torch/csrc/cuda/Module.cpp,
// registerCudaPluggableAllocator).
#include "memory/Allocator.h"
#include "core/Registry.h"
#include "memory/DeviceMemory.h"
#include "core/PythonTensor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace phantom {
namespace {

c10::StorageImpl& storageAt(uint64_t pointer) {
  TORCH_CHECK(pointer != 0, "expected a storage, got a null pointer");
  return *reinterpret_cast<c10::StorageImpl*>(pointer);
}

py::object constructTensor(const py::dict& metadata, const py::handle& storage) {
  TORCH_CHECK(THPStorage_Check(storage.ptr()), "expected a storage");
  const auto dtype = reinterpret_cast<THPDtype*>(py::object(metadata["dtype"]).ptr())->scalar_type;
  at::Tensor tensor = at::detail::make_tensor_base<c10::TensorImpl>(c10::Storage(THPStorage_Unpack(storage.ptr())),
                                                                    c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                                    c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(metadata["size"].cast<std::vector<int64_t>>(),
                                                      metadata["stride"].cast<std::vector<int64_t>>());
  tensor.unsafeGetTensorImpl()->set_storage_offset(metadata["storage_offset"].cast<int64_t>());
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor)));
}

bool samePointers(const py::list& tensors, const py::list& pointers, const py::list& indices) {
  for (const py::handle& index : indices) {
    const auto i = index.cast<size_t>();
    const auto address = reinterpret_cast<uint64_t>(tensorOf(tensors[i]).const_data_ptr());
    if (pointers[i].is_none() || pointers[i].cast<uint64_t>() != address) return false;
  }
  return true;
}

void setCheckpoint(const PoolCheckpoint& checkpoint, const std::vector<uint64_t>& live) {
  DeviceMemory& memory = deviceMemory(checkpoint.device);
  memory.restore(checkpoint);
  for (const uint64_t pointer : live) {
    c10::StorageImpl& storage = storageAt(pointer);
    if (ownsBlock(storage) || storage.data_ptr().get() == nullptr) continue;
    Block* block = memory.blockAt(reinterpret_cast<uintptr_t>(storage.data_ptr().get()));
    if (block != nullptr) adoptBlock(storage, block, checkpoint.device);
  }
}

void freeStorage(uint64_t pointer) {
  c10::StorageImpl& storage = storageAt(pointer);
  TORCH_CHECK(ownsBlock(storage), "Expected standard deleter");
  const c10::DataPtr& old = storage.data_ptr();
  storage.set_data_ptr_noswap(c10::DataPtr(old.get(), old.device()));
}

const Binding bind_graph_trees([](py::module_& m) {
  py::class_<PoolCheckpoint>(m, "PoolCheckpoint");
  m.def("pool_checkpoint",
        [](int64_t device, PoolId pool) { return deviceMemory(c10::DeviceIndex(device)).checkpoint(pool); });
  m.def("set_pool_checkpoint", &setCheckpoint);
  m.def("pool_holds_only", [](int64_t device, PoolId pool, const std::set<uintptr_t>& expected) {
    return deviceMemory(c10::DeviceIndex(device)).allocatedIn(pool) == expected;
  });
  m.def("construct_cuda_tensor", &constructTensor);
  m.def("storage_use_count", [](uint64_t pointer) {
    return c10::raw::weak_intrusive_ptr::use_count(reinterpret_cast<c10::StorageImpl*>(pointer));
  });
  m.def("tensors_data_ptrs_at_indices_equal", &samePointers);
  m.def("free_and_remove_deleter", &freeStorage);
  m.def("has_standard_deleter", [](uint64_t pointer) { return ownsBlock(storageAt(pointer)); });
  m.def("set_storage_access_error", [](const py::handle& tensor, const std::string& text) {
    tensorOf(tensor).unsafeGetTensorImpl()->release_storage_and_set_meta_custom_data_ptr_error_msg_(text);
  });
  m.def("set_storage_data_ptr_access_error", [](uint64_t pointer, const std::string& text) {
    storageAt(pointer).release_data_and_set_meta_custom_data_ptr_error_msg_(text);
  });
});

}  // namespace
}  // namespace phantom
