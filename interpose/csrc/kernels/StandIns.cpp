// Which libraries this process imported phantom's stand-ins for; told with the rank's statistics.
#include "time/Accounting.h"
#include "core/Registry.h"
#include "core/Msgpack.h"

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <string>

namespace phantom {
namespace {

namespace py = pybind11;

std::mutex g_used_mutex;
std::map<std::string, std::string>* g_used = new std::map<std::string, std::string>;  // name -> version

void packStandIns(Packer& p) {
  std::lock_guard<std::mutex> hold(g_used_mutex);
  p.map(g_used->size());
  for (const auto& [name, version] : *g_used) {
    p.string(name);
    p.string(version);
  }
}
const StatsEntry stand_ins_entry(wire::AccountField::kStandIns, &packStandIns);

void bindStandIns(py::module_& m) {
  m.def("note_stand_in", [](const std::string& name, const std::string& version) {
    std::lock_guard<std::mutex> hold(g_used_mutex);
    (*g_used)[name] = version;
  });
}
const Binding bind_stand_ins(&bindStandIns);

}  // namespace
}  // namespace phantom
