// Python's view of values.
#include "core/PythonTensor.h"
#include "core/Registry.h"
#include "time/Accounting.h"
#include "values/DeferredValues.h"
#include "values/HostValues.h"
#include "values/MoeRouting.h"
#include "values/Values.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace phantom {
namespace {

py::object asPython(const std::optional<at::Tensor>& value) {
  if (!value) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(value->clone()));
}

void setPythonRouterLayer(const py::object& callable) {
  PyObject* held = py::object(callable)
                       .release()
                       .ptr();  // never freed: a worker thread may still be in a call at the interpreter's end
  setRouterLayer([held]() -> int64_t {
    if (!Py_IsInitialized()) return -1;
    py::gil_scoped_acquire gil;
    return py::cast<int64_t>(py::reinterpret_borrow<py::object>(held)());
  });
}

const Binding bind_values([](py::module_& m) {
  m.def("set_router_layer", &setPythonRouterLayer);
  m.def("set_healthy_step", &setHealthyStep);
  m.def("unknown_reads", &unknownReads);
  m.def("known_value", [](const py::object& t) { return asPython(knownValue(tensorOf(t))); });
  m.def("has_value", [](const py::object& t) { return hasValue(tensorOf(t)); });
  m.def("value_pending", [](const py::object& t) { return valuePending(tensorOf(t)); });
  m.def("drop_value", [](const py::object& t) { dropValue(tensorOf(t)); });
  m.def("set_pending", [](const py::object& t) {
    Fulfil fulfil = setPending(tensorOf(t));
    return py::cpp_function([fulfil](const py::object& value) {
      std::optional<at::Tensor> given;
      if (!value.is_none()) given = tensorOf(value);
      py::gil_scoped_release no_gil;
      fulfil(std::move(given));
    });
  });
  m.def("pack_value", [](const py::object& t) { return py::bytes(packValue(tensorOf(t))); });
  m.def("unpack_value", [](const py::bytes& payload) { return asPython(unpackValue(payload)); });
  m.def("settle_host_copies", &settleHostCopies, py::call_guard<py::gil_scoped_release>());
});

void packReads(Packer& p) {
  const auto reads = unknownReads();
  p.map(reads.size());
  for (const auto& [where, count] : reads) {
    p.string(where);
    p.integer(int64_t(count));
  }
}
const StatsEntry reads_entry(wire::AccountField::kUnknownReads, &packReads);

void packFailures(Packer& p) {
  const auto failures = failedExecutions();
  p.map(failures.size());
  for (const auto& [op, count] : failures) {
    p.string(op);
    p.integer(int64_t(count));
  }
}
const StatsEntry failures_entry(wire::AccountField::kFailedValueExecutions, &packFailures);

}  // namespace
}  // namespace phantom
