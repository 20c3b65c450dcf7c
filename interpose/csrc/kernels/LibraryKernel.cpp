// Kernels that are launched past PyTorch's dispatcher (Triton's): the caller describes them and says what they write.
#include "time/Accounting.h"
#include "core/Registry.h"
#include "time/Clock.h"
#include "core/Device.h"
#include "operators/OperatorCall.h"
#include "operators/KernelRequest.h"
#include "core/PythonTensor.h"
#include "time/Session.h"
#include "time/Timeline.h"
#include "values/Values.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <mutex>
#include <vector>

namespace py = pybind11;

namespace phantom {
namespace {

// Leaked; entries are never freed, so that an index stays good.
std::mutex g_entries_mutex;
auto& g_entries = *new std::vector<EntryPtr>();

EntryPtr entryOf(uint64_t index) {
  std::lock_guard<std::mutex> hold(g_entries_mutex);
  return g_entries.at(index);
}

uint64_t priceLibraryKernel(const std::string& op, const std::string& request) {
  EntryPtr entry = c10::make_intrusive<MetadataEntry>();
  priceRequest(op, request, *entry);
  std::lock_guard<std::mutex> hold(g_entries_mutex);
  g_entries.push_back(std::move(entry));
  return g_entries.size() - 1;
}

// False if the cost is out of date and has to be asked for again.
bool launchLibraryKernel(uint64_t index, int64_t device_index, uint64_t stream_handle, const py::sequence& written) {
  const EntryPtr entry = entryOf(index);
  if (entry->cost_generation != costGeneration()) return false;
  const auto device = c10::DeviceIndex(device_index);
  launchOn(*entry, device, streamOfHandle(device, stream_handle));
  for (const py::handle& tensor : written) dropValue(tensorOf(tensor));
  return true;
}

// torch._C._dynamo.guards._empty_strided_cuda, which CPU builds lack (torch/csrc/dynamo/guards.cpp).
py::object emptyStridedCuda(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                            const py::object& dtype) {
  TORCH_CHECK(THPDtype_Check(dtype.ptr()), "expected a dtype");
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  const c10::Device device(c10::kCUDA, currentDevice());
  at::Tensor made = at::empty_strided(sizes, strides, at::TensorOptions().dtype(type).device(device));
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(made)));
}

const Binding bind_library_kernels([](py::module_& m) {
  m.def("price_library_kernel", [](const std::string& op, const py::bytes& request) {
    const std::string text = request;
    py::gil_scoped_release no_gil;
    return priceLibraryKernel(op, text);
  });
  m.def("launch_library_kernel", &launchLibraryKernel);
  m.def("empty_strided_cuda", &emptyStridedCuda);
});

}  // namespace
}  // namespace phantom
