// The CPU clock of each thread that issues device work.
#pragma once

#include "core/Time.h"

#include <functional>
#include <optional>

namespace phantom {

struct Clock {
  explicit Clock(uint32_t clock_id, Picoseconds start_ps) : id(clock_id), now_ps(start_ps) {}
  const uint32_t id;  // 0 is the rank's main clock
  std::atomic<Picoseconds> now_ps;
  std::atomic<Picoseconds> reported_ps{-1};  // last value that the simulator knows
  std::atomic<bool> claimed{false};          // its thread has used it
  std::atomic<bool> waiting{false};          // blocked in a request: the simulator knows, and moves it

  void advance(Picoseconds by_ps) { now_ps.fetch_add(by_ps, std::memory_order_relaxed); }
  void notBefore(Picoseconds time_ps) {
    if (now_ps.load(std::memory_order_relaxed) < time_ps) now_ps.store(time_ps, std::memory_order_relaxed);
  }
};

// The calling thread's clock; made on first use, starting at what inheritClock() left for this thread, else at the
// main clock. An autograd worker thread uses the clock of the thread that called backward.
Clock& thisThreadClock();
bool thisThreadHasClock();                // a clock that is only reserved does not count
void inheritClock(Picoseconds start_ps);  // call in the new thread before its first device work
// The clock of another thread (pthread_self() as Python's Thread.ident gives it): its own, or one that it will find.
Clock& reserveClock(uint64_t thread, Picoseconds start_ps);
// The id of the clock that was reserved for a thread and that the thread has not used; it is reserved no more.
std::optional<uint32_t> releaseClock(uint64_t thread);
void endThreadClock();    // the thread is about to end
void setBackwardOwner();  // the calling thread starts a backward pass
void resetClocksAfterFork();

// Host time spent by one intercepted call. `kind` chooses the modelled cost; under cpu_time=measured the thread's own
// CPU time since the last hook is taken instead.
enum class HostWork { kOperator, kView, kCollective, kQuery, kSync, kStore, kTimeRead };
void chargeHost(HostWork kind);
void hookLeft();  // cpu_time=measured: what follows is the script's own time

// A stay inside one of our hooks. Under cpu_time=measured the script's time ends where the outermost one begins and goes
// on where it ends, so that looking up metadata, asking for costs and the like is nobody's time.
class HookScope {
 public:
  HookScope();
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

void forEachClock(const std::function<void(Clock&)>& visit);
Picoseconds earliestClock();  // no thread will launch anything before this
bool isAutogradThread();

}  // namespace phantom
