// The streams from Python: for adapters of library kernels that bypass the dispatcher, and for tests of the accounting.
#include "time/Accounting.h"
#include "core/Registry.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace phantom {
namespace {

const Binding bind_timeline([](py::module_& m) {
  m.def(
      "launch_kernel",
      [](int device, int64_t stream, Picoseconds duration_ps, const std::string& name, const std::string& klass,
         const std::string& source) {
        launchKernel(DeviceIndex(device), stream, duration_ps, internKernel(name, klass, source));
      },
      py::arg("device"), py::arg("stream"), py::arg("duration_ps"), py::arg("name"), py::arg("klass"),
      py::arg("source"));
  // A collective on `stream` whose node only the simulator can end; returns the node's id. Posts no record.
  m.def("occupy_stream", [](int device, int64_t stream, const std::string& what) {
    const NodePtr node = newNode();
    occupyStream(DeviceIndex(device), stream, node, what);
    return node->id;
  });
  m.def("stream_wait_stream", [](int device, int64_t waiting, int64_t stream) {
    streamWait(DeviceIndex(device), waiting, streamTail(DeviceIndex(device), stream));
  });
});

}  // namespace
}  // namespace phantom
