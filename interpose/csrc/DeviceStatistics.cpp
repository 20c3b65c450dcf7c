// What the device adds to the rank's STATS: memory over the whole job, operators, host memory that was left untouched.
#include "Accounting.h"
#include "DeviceMemory.h"
#include "Dispatch.h"
#include "HostMemory.h"

namespace phantom {
namespace {

DeviceMemory::JobPeak worstDevice() {
  DeviceMemory::JobPeak worst;
  forEachDeviceMemory([&](DeviceMemory& memory) {
    const auto peak = memory.jobPeak();
    worst.allocated_bytes = std::max(worst.allocated_bytes, peak.allocated_bytes);
    worst.reserved_bytes = std::max(worst.reserved_bytes, peak.reserved_bytes);
    worst.ooms += peak.ooms;
  });
  return worst;
}

const StatsEntry allocated("peak_allocated_bytes", [](Packer& p) { p.integer(worstDevice().allocated_bytes); });
const StatsEntry reserved("peak_reserved_bytes", [](Packer& p) { p.integer(worstDevice().reserved_bytes); });
const StatsEntry oom("oom", [](Packer& p) { p.boolean(worstDevice().ooms > 0); });
const StatsEntry operators("ops", [](Packer& p) { p.integer(int64_t(dispatchCounters().operators)); });
const StatsEntry lazy("host_lazy_bytes", [](Packer& p) { p.integer(int64_t(hostLazyBytes())); });

}  // namespace
}  // namespace phantom
