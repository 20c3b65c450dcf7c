// Python classes ProcessGroupNCCL and HostGroup. They derive from torch's own c10d classes, which exist only once
// torch.distributed's C part is initialised, so that they are made on demand (interpose/hooks/distributed.py).
#include "core/Registry.h"
#include "time/Clock.h"
#include "distributed/HostGroup.h"
#include "distributed/ProcessGroupNccl.h"

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace phantom {
namespace {

using Options = ProcessGroupNccl::Options;
using OptionsPtr = c10::intrusive_ptr<Options>;
using GroupPtr = c10::intrusive_ptr<ProcessGroupNccl>;
using NoGil = py::call_guard<py::gil_scoped_release>;

// What torch.cuda.nccl.version() says; 2.27 is what torch's CUDA wheels of this generation ship or supersede.
const auto kNcclVersion = std::make_tuple(2, 27, 5);

void bindConfig(py::class_<ProcessGroupNccl, c10d::Backend, GroupPtr>& group) {
  py::class_<NcclConfig>(group, "NCCLConfig")
      .def(py::init<>())
      .def_readwrite("blocking", &NcclConfig::blocking)
      .def_readwrite("cga_cluster_size", &NcclConfig::cga_cluster_size)
      .def_readwrite("min_ctas", &NcclConfig::min_ctas)
      .def_readwrite("max_ctas", &NcclConfig::max_ctas)
      .def_readwrite("split_share", &NcclConfig::split_share)
      .def_readwrite("traffic_class", &NcclConfig::traffic_class)
      .def_readwrite("collnet_enable", &NcclConfig::collnet_enable)
      .def_readwrite("cta_policy", &NcclConfig::cta_policy)
      .def_readwrite("shrink_share", &NcclConfig::shrink_share)
      .def_readwrite("nvls_ctas", &NcclConfig::nvls_ctas)
      .def_readwrite("n_channels_per_net_peer", &NcclConfig::n_channels_per_net_peer)
      .def_readwrite("nvlink_centric_sched", &NcclConfig::nvlink_centric_sched)
      .def_readwrite("net_name", &NcclConfig::net_name)
      .def_readwrite("comm_name", &NcclConfig::comm_name)
      .def("unsafe_get_ptr", [](NcclConfig& self) { return reinterpret_cast<int64_t>(&self); })
      .def("__copy__", [](const NcclConfig& self) { return self; })
      .def("__deepcopy__", [](const NcclConfig& self, const py::dict&) { return self; }, py::arg("memo"));
}

void bindOptions(py::class_<ProcessGroupNccl, c10d::Backend, GroupPtr>& group) {
  py::class_<Options, c10d::Backend::Options, OptionsPtr>(group, "Options")
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def_readwrite("config", &Options::config)
      .def_readwrite("split_from", &Options::split_from)
      .def_readwrite("split_color", &Options::split_color)
      .def_readwrite("group_name", &Options::group_name)
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def(
          "__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); },
          py::arg("memo"));
}

void bindGroup(py::class_<ProcessGroupNccl, c10d::Backend, GroupPtr>& group) {
  group
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, OptionsPtr options) {
             if (!options) options = c10::make_intrusive<Options>();
             return c10::make_intrusive<ProcessGroupNccl>(std::move(store), rank, size, std::move(options));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options") = OptionsPtr())
      .def(py::init([](c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout) {
             auto options = c10::make_intrusive<Options>();
             options->timeout = timeout;
             return c10::make_intrusive<ProcessGroupNccl>(std::move(store), rank, size, std::move(options));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"))
      .def_property_readonly("options", &ProcessGroupNccl::options)
      .def_property_readonly("uid", &ProcessGroupNccl::uid)
      .def_property("bound_device_id", &ProcessGroupNccl::getBoundDeviceId, &ProcessGroupNccl::setBoundDeviceId)
      .def("comm_split_count", &ProcessGroupNccl::commSplitCount)
      .def("perform_nocolor_split", &ProcessGroupNccl::performNocolorSplit)
      .def(
          "register_mem_pool", [](ProcessGroupNccl& self, const py::object&, bool) { self.noteMemPool(); },
          py::arg("pool"), py::arg("symm") = false)
      .def(
          "deregister_mem_pool", [](ProcessGroupNccl&, const py::object&) {}, py::arg("pool"))
      .def("_is_initialized", &ProcessGroupNccl::isInitialized)
      .def("get_error", &ProcessGroupNccl::getError)
      .def("_set_default_timeout", &ProcessGroupNccl::setTimeout, py::arg("timeout"))
      .def("_get_timeout", [](ProcessGroupNccl& self) { return self.options()->timeout; })
      .def(
          "_add_ephemeral_timeout", [](ProcessGroupNccl&, std::chrono::milliseconds) {}, py::arg("timeout"))
      .def("_verify_work_timeout",
           [](ProcessGroupNccl&, const c10::intrusive_ptr<Work>&, std::chrono::milliseconds) { return true; })
      .def(
          "_set_enable_nan_check", [](ProcessGroupNccl&, bool) {}, py::arg("enable_nan_check"))
      .def("_comm_ptr", [](ProcessGroupNccl& self) { return self.getID(); })
      .def("_group_start", &ProcessGroupNccl::startCoalescing, NoGil())
      .def(
          "_group_end", [](ProcessGroupNccl& self) { self.endCoalescing(); }, NoGil())
      .def("_shutdown", &ProcessGroupNccl::shutdown, NoGil())
      .def("abort", &ProcessGroupNccl::abort, NoGil())
      .def_static("get_build_nccl_version", [] { return kNcclVersion; })
      .def_static("get_runtime_nccl_version", [] { return kNcclVersion; });
  group.attr("NCCL_CTA_POLICY_DEFAULT") = 0;
  group.attr("NCCL_CTA_POLICY_EFFICIENCY") = 1;
  group.attr("NCCL_CTA_POLICY_ZERO") = 2;
  group.attr("NCCL_SPLIT_NOCOLOR") = -1;
}

py::object makeProcessGroupNccl(const py::module_& scope) {
  static PyObject* made = nullptr;  // the class lives as long as the process, like torch's own
  if (made == nullptr) {
    py::class_<ProcessGroupNccl, c10d::Backend, GroupPtr> group(scope, "ProcessGroupNCCL", py::module_local(false));
    bindConfig(group);
    bindOptions(group);
    bindGroup(group);
    made = group.inc_ref().ptr();
  }
  return py::reinterpret_borrow<py::object>(made);
}

// The class of wrapped Gloo groups. To Python it says that it is a ProcessGroupGloo (`__class__`), and what it does not
// know it asks the wrapped group.
py::object makeHostGroup(const py::module_& scope) {
  static PyObject* made = nullptr;
  if (made == nullptr) {
    using HostPtr = c10::intrusive_ptr<HostGroup>;
    py::class_<HostGroup, c10d::Backend, HostPtr> group(scope, "_PhantomHostGroup", py::module_local(false));
    group.def(py::init<c10::intrusive_ptr<c10d::Backend>>(), py::arg("inner"))
        .def_property_readonly("inner", [](HostGroup& self) { return self.inner(); })
        // Objects, not accessors: an accessor would be read when the wrapped group's Python object is gone.
        .def_property_readonly("options",
                               [](HostGroup& self) -> py::object { return py::cast(self.inner()).attr("options"); })
        .def("__getattr__",
             [](HostGroup& self, const py::str& name) -> py::object { return py::cast(self.inner()).attr(name); })
        .def("_class_of_inner", [](HostGroup& self) { return py::type::of(py::cast(self.inner())); });
    // A property called __class__ cannot be set on a finished class, only put into its dictionary.
    const py::object property = py::module_::import("builtins").attr("property")(group.attr("_class_of_inner"));
    auto* type = reinterpret_cast<PyTypeObject*>(group.ptr());
    if (PyDict_SetItemString(type->tp_dict, "__class__", property.ptr()) != 0) throw py::error_already_set();
    PyType_Modified(type);
    made = group.inc_ref().ptr();
  }
  return py::reinterpret_borrow<py::object>(made);
}

const Binding bind_collectives([](py::module_& m) {
  m.def("make_process_group_nccl", &makeProcessGroupNccl, py::arg("scope"));
  m.def("make_host_group", &makeHostGroup, py::arg("scope"));
  m.def("meet_begin", &meetBegin, py::arg("name"), py::arg("global_ranks"), NoGil());
  m.def("meet_end", &meetEnd, py::arg("request"), NoGil());
  m.def(
      "meet_failed",
      [](uint64_t request) {
        if (request != 0) thisThreadClock().waiting = false;
      },
      py::arg("request"));
  m.def("nccl_version", [] { return kNcclVersion; });
  m.def("nccl_default_timeout", [] { return kNcclDefaultTimeout; });
});

}  // namespace
}  // namespace phantom
