// What the device adds to the rank's STATS: memory over the whole job, host memory that was left untouched.
#include "time/Accounting.h"
#include "memory/DeviceMemory.h"
#include "memory/HostMemory.h"

#include <algorithm>

namespace phantom {
namespace {

// A rank normally uses one device; where it used several, the fullest one is shown.
std::pair<int64_t, int64_t> highestPeaks() {
  std::pair<int64_t, int64_t> highest{0, 0};
  forEachDeviceMemory([&](DeviceMemory& memory) {
    const auto [allocated, reserved] = memory.lifetimePeaks();
    highest = {std::max(highest.first, allocated), std::max(highest.second, reserved)};
  });
  return highest;
}

bool ranOutOfMemory() {
  bool any = false;
  forEachDeviceMemory([&](DeviceMemory& memory) { any |= memory.lifetimeOoms() > 0; });
  return any;
}

const StatsEntry allocated_entry(wire::AccountField::kPeakAllocatedBytes,
                                 [](Packer& p) { p.integer(highestPeaks().first); });
const StatsEntry reserved_entry(wire::AccountField::kPeakReservedBytes,
                                [](Packer& p) { p.integer(highestPeaks().second); });
const StatsEntry oom_entry(wire::AccountField::kOom, [](Packer& p) { p.boolean(ranOutOfMemory()); });
const StatsEntry lazy_entry(wire::AccountField::kHostLazyBytes, [](Packer& p) { p.integer(int64_t(hostLazyBytes())); });

}  // namespace
}  // namespace phantom
