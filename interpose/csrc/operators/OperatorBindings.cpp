// Python's view of the dispatcher kernels.
#include "core/Registry.h"
#include "operators/Dispatch.h"
#include "operators/MetadataCache.h"
#include "time/Accounting.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace phantom {

int64_t registeredKernels();

namespace {

void setPythonCostCallback(const py::object& callable) {
  if (callable.is_none()) {
    setCostCallback(nullptr);
    return;
  }
  // Never freed: a worker thread may still be in a call when the interpreter goes away.
  PyObject* held = py::object(callable).release().ptr();
  setCostCallback([held](const std::string& request) {
    py::gil_scoped_acquire gil;
    const py::object reply = py::reinterpret_borrow<py::object>(held)(py::bytes(request));
    return std::string(py::cast<py::bytes>(reply));
  });
}

const Binding bind_dispatch([](py::module_& m) {
  m.def("set_cost_callback", &setPythonCostCallback);
  m.def("dispatch_counters", [] {
    const DispatchCounters c = dispatchCounters();
    return py::dict(py::arg("operators") = c.operators, py::arg("hits") = c.hits, py::arg("misses") = c.misses,
                    py::arg("entries") = metadataEntries(), py::arg("kernels") = registeredKernels());
  });
  m.def("set_metadata_capacity", &setMetadataCapacity);
});

const StatsEntry operators_entry(wire::AccountField::kOps,
                                 [](Packer& p) { p.integer(int64_t(dispatchCounters().operators)); });

}  // namespace
}  // namespace phantom
