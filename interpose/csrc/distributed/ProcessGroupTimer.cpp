// DDP's timer for CUDA modules, which its C++ Logger dereferences: host times as torch takes them, device times virtual.
#include "core/Registry.h"
#include "core/Device.h"
#include "time/Timeline.h"

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <map>

namespace phantom {
namespace {

class DdpTimer : public c10d::Timer {
 public:
  explicit DdpTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event);
    tails_[event] = streamTail(device_.index(), currentStream(device_.index()));
  }

  // Waits for both events as torch's CUDA timer does (reducer_cuda.cpp); nanoseconds.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = tails_.find(start), to = tails_.find(end);
    if (from == tails_.end() || to == tails_.end()) return std::nullopt;
    for (auto found : {from, to}) {
      // Always, and not only where the end is not known here yet: when it became known depends on the host's load.
      const Tail tail = found->second;
      synchronize(tail, "DDP's timing log");
      if (tail.node) found->second = Tail(std::max(tail.bound_ps, tail.node->end_ps.load() + tail.offset_ps));
    }
    const Picoseconds elapsed_ps = to->second.bound_ps - from->second.bound_ps;
    if (elapsed_ps < 0) return std::nullopt;
    return elapsed_ps / 1000;
  }

 private:
  const c10::Device device_;
  std::map<Event, Tail> tails_;
};

std::unique_ptr<c10d::Timer> makeTimer(c10::Device device) { return std::make_unique<DdpTimer>(device); }

const Installer install_timer(50, [] {
  auto* registry = c10d::TimerRegistry();
  if (registry->Has(c10::kCUDA)) {  // a CUDA wheel has its own
    registry->SetTerminate(false);
    registry->Register(c10::kCUDA, &makeTimer, c10::REGISTRY_PREFERRED);
  } else {
    registry->Register(c10::kCUDA, &makeTimer);
  }
});

}  // namespace
}  // namespace phantom
