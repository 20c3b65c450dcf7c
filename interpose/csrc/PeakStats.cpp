// The memory peaks of this rank in STATS: of the device that held most.
#include "Accounting.h"
#include "Config.h"
#include "DeviceMemory.h"

#include <algorithm>

namespace phantom {
namespace {

std::pair<int64_t, int64_t> peaks() {
  std::pair<int64_t, int64_t> most{0, 0};
  for (int device = 0; device < config().device_count; ++device) {
    const auto [allocated, reserved] = deviceMemory(c10::DeviceIndex(device)).lifetimePeaks();
    most = {std::max(most.first, allocated), std::max(most.second, reserved)};
  }
  return most;
}

void packAllocated(Packer& p) { p.integer(peaks().first); }
void packReserved(Packer& p) { p.integer(peaks().second); }

const StatsEntry allocated_entry("peak_allocated_bytes", &packAllocated);
const StatsEntry reserved_entry("peak_reserved_bytes", &packReserved);

}  // namespace
}  // namespace phantom
