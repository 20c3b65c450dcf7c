#include "time/Clock.h"
#include "time/ClockTokens.h"

#include "core/Records.h"
#include "core/Config.h"
#include "time/OffClock.h"
#include "time/Session.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/thread_name.h>
#include <pthread.h>
#include <time.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace phantom {
namespace {

// Replaced as a whole in a forked child, whose copy of the mutex may be locked by a thread that no longer exists.
struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Clock>> clocks;
  std::map<uint64_t, Clock*> of_thread;  // by pthread_self(); an entry lives as long as the thread
  std::atomic<Clock*> backward_owner{nullptr};

  Clock& ofThread(uint64_t thread, Picoseconds start_ps, bool claim) {
    std::lock_guard<std::mutex> hold(mutex);
    Clock*& clock = of_thread[thread];
    if (clock == nullptr) {
      clocks.push_back(std::make_unique<Clock>(uint32_t(clocks.size()), start_ps));
      clock = clocks.back().get();
    }
    if (claim) clock->claimed = true;
    return *clock;
  }
  void forgetThread(uint64_t thread) {
    std::lock_guard<std::mutex> hold(mutex);
    of_thread.erase(thread);
  }
  // Makes the clock kept under `token` that of `thread`, or of none; null if there is no such clock.
  Clock* move(uint64_t token, uint64_t thread) {
    std::lock_guard<std::mutex> hold(mutex);
    const auto found = of_thread.find(token);
    if (found == of_thread.end()) return nullptr;
    Clock* clock = found->second;
    of_thread.erase(found);
    if (thread != 0) of_thread[thread] = clock;
    return clock;
  }
  std::optional<uint32_t> release(uint64_t thread) {
    std::lock_guard<std::mutex> hold(mutex);
    auto found = of_thread.find(thread);
    if (found == of_thread.end() || found->second->claimed) return std::nullopt;
    Clock& clock = *found->second;
    clock.waiting = true;  // never reported again
    of_thread.erase(found);
    return clock.id;
  }
  Clock* main() {
    std::lock_guard<std::mutex> hold(mutex);
    return clocks.empty() ? nullptr : clocks.front().get();
  }
};

Registry* g_registry = new Registry;
uint64_t g_fork_generation =
    1;  // bumped in a forked child, so that thread-locals of the parent's thread are void there

enum class ThreadKind : uint8_t { kUnknown, kAutograd, kOther };
thread_local ThreadKind t_kind = ThreadKind::kUnknown;
thread_local Clock* t_clock = nullptr;
thread_local uint64_t t_generation = 0;
thread_local Picoseconds t_start_ps = -1;
// cpu_time=measured: this thread's CPU time when it last left a hook (-1: it has not been in one), and how many hooks
// it is in. Of the thread and not of its clock, since an autograd thread goes on with another thread's clock.
thread_local Picoseconds t_cpu_time_ns = -1;
thread_local int t_hooks = 0;

Picoseconds threadCpuTimeNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Picoseconds(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// What two readings in a row are apart: half of each reading lies in the script's time.
Picoseconds readingCostNs() {
  static const Picoseconds cost_ns = [] {
    Picoseconds least = INT64_MAX;
    for (int i = 0; i < 100; ++i) {
      const Picoseconds before_ns = threadCpuTimeNs();
      least = std::min(least, threadCpuTimeNs() - before_ns);
    }
    return least;
  }();
  return cost_ns;
}

// Charges what this thread has computed since it left the last hook.
void chargeMeasured(Clock& clock) {
  const Picoseconds reading_ns = readingCostNs();
  const Picoseconds now_ns = threadCpuTimeNs();
  if (t_cpu_time_ns >= 0 && !offClock()) {
    const Picoseconds own_ns = now_ns - t_cpu_time_ns - reading_ns;
    if (own_ns > 0) clock.advance(own_ns * 1000);
  }
  t_cpu_time_ns = now_ns;
}

bool measured() { return config().cpu_time == CpuTime::kMeasured; }

Picoseconds modelledCost(HostWork kind) {
  const HostModel& host = config().host;
  switch (kind) {
    case HostWork::kOperator:
      // With gradients enabled the autograd thread runs Python again (a recomputed forward pass), not its own nodes.
      return isAutogradThread() && !at::GradMode::is_enabled() ? host.backward_node_ps : host.op_ps;
    case HostWork::kView: return host.view_ps;
    case HostWork::kCollective: return host.collective_ps;
    case HostWork::kQuery: return host.query_ps;
    case HostWork::kSync: return host.sync_ps;
    case HostWork::kStore: return host.store_ps;
    case HostWork::kTimeRead: return 100'000;  // about one call of time.time(); keeps polling loops moving
  }
  return 0;
}

void retire(Clock& clock) {
  clock.waiting = true;  // never reported again
  if (!sessionOpen()) return;
  record([&](Packer& p) { wire::ClockEnd{.clock = clock.id}.write(p); });
}

}  // namespace

bool isAutogradThread() {
  // torch/csrc/autograd/engine.cpp, Engine::thread_init names its device threads "pt_autograd_<n>".
  if (t_kind == ThreadKind::kUnknown) {
    t_kind = c10::getThreadName().rfind("pt_autograd_", 0) == 0 ? ThreadKind::kAutograd : ThreadKind::kOther;
  }
  return t_kind == ThreadKind::kAutograd;
}

bool thisThreadHasClock() {
  if (t_clock != nullptr && t_generation == g_fork_generation) return true;
  if (isAutogradThread()) return g_registry->backward_owner.load() != nullptr;
  return false;
}

Clock& thisThreadClock() {
  if (t_clock != nullptr && t_generation == g_fork_generation) return *t_clock;
  if (isAutogradThread()) {
    Clock* owner = g_registry->backward_owner.load(std::memory_order_acquire);
    if (owner == nullptr) owner = g_registry->main();
    if (owner != nullptr) return *owner;
  }
  Picoseconds start_ps = t_start_ps;
  Clock* main = g_registry->main();
  if (start_ps < 0) start_ps = main != nullptr ? main->now_ps.load() : 0;
  t_clock = &g_registry->ofThread(uint64_t(pthread_self()), start_ps, true);
  t_generation = g_fork_generation;
  if (measured() && t_cpu_time_ns < 0) t_cpu_time_ns = threadCpuTimeNs();
  return *t_clock;
}

Clock& reserveClock(uint64_t thread, Picoseconds start_ps) { return g_registry->ofThread(thread, start_ps, false); }

std::optional<uint32_t> releaseClock(uint64_t thread) { return g_registry->release(thread); }

void inheritClock(Picoseconds start_ps) { t_start_ps = start_ps; }

void endThreadClock() {
  if (!thisThreadHasClock() || isAutogradThread()) return;
  Clock& clock = thisThreadClock();
  if (clock.id == 0) return;
  g_registry->forgetThread(uint64_t(pthread_self()));
  retire(clock);
  t_clock = nullptr;
}

void adoptClock(uint64_t token) {
  const auto self = uint64_t(pthread_self());
  if (Clock* own = g_registry->move(self, 0)) retire(*own);
  t_clock = nullptr;
  g_registry->move(token, self);
}

void dropClock(uint64_t token) {
  if (Clock* clock = g_registry->move(token, 0)) retire(*clock);
}

void setBackwardOwner() {
  if (!isAutogradThread()) g_registry->backward_owner.store(&thisThreadClock(), std::memory_order_release);
}

void chargeHost(HostWork kind) {
  if (offClock()) return;
  Clock& clock = thisThreadClock();
  switch (config().cpu_time) {
    case CpuTime::kModel: clock.advance(modelledCost(kind)); break;
    case CpuTime::kMeasured:
      if (t_hooks == 0) chargeMeasured(clock);  // else charged where the outermost hook began
      break;
    case CpuTime::kNone:
      if (kind == HostWork::kQuery || kind == HostWork::kTimeRead)
        clock.advance(modelledCost(kind));  // polling must end
      break;
  }
}

void hookLeft() {
  if (measured() && t_hooks == 0) t_cpu_time_ns = threadCpuTimeNs();
}

HookScope::HookScope() {
  if (t_hooks++ == 0 && measured()) chargeMeasured(thisThreadClock());
}

HookScope::~HookScope() {
  if (--t_hooks == 0 && measured()) t_cpu_time_ns = threadCpuTimeNs();
}

void forEachClock(const std::function<void(Clock&)>& visit) {
  std::lock_guard<std::mutex> hold(g_registry->mutex);
  for (auto& clock : g_registry->clocks) visit(*clock);
}

Picoseconds earliestClock() {
  Picoseconds earliest = INT64_MAX;
  forEachClock([&](Clock& clock) {
    if (!(clock.waiting && clock.id != 0)) earliest = std::min(earliest, clock.now_ps.load());
  });
  return earliest == INT64_MAX ? 0 : earliest;
}

void resetClocksAfterFork() {
  g_registry = new Registry;
  ++g_fork_generation;
  t_start_ps = -1;
  t_cpu_time_ns = -1;
}

}  // namespace phantom
