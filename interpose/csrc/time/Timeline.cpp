#include "time/Timeline.h"

#include "time/Accounting.h"
#include "time/Clock.h"
#include "core/Records.h"
#include "core/Config.h"
#include "device/GraphCapture.h"
#include "time/OffClock.h"
#include "time/Session.h"
#include "values/HostValues.h"
#include "time/Spool.h"

#include <Python.h>
#include <pybind11/pybind11.h>

#include <map>
#include <mutex>
#include <utility>

namespace phantom {
namespace {

struct StreamState {
  Tail tail;
  std::vector<Tail> queue;  // ends of the last launches, a ring: the launch queue of a GPU is finite
  size_t next = 0;
};

// Replaced as a whole in a forked child.
struct TimelineState {
  std::mutex mutex;
  std::map<std::pair<int, StreamId>, StreamState> streams;
  std::map<std::string, uint32_t> collective_names;
};

TimelineState* g_timeline = new TimelineState;

StreamState& stateOf(TimelineState& state, DeviceIndex device, StreamId stream) {
  return state.streams[{device, stream}];
}

uint32_t streamKey(DeviceIndex device, StreamId stream) { return uint32_t(device) * 65536 + uint32_t(stream & 0xffff); }

}  // namespace

void launchKernel(DeviceIndex device, StreamId stream, Picoseconds duration_ps, uint32_t kernel) {
  if (countOffClock(duration_ps)) return;
  if (captureKernel(device, stream, duration_ps, kernel)) return;
  Clock& clock = thisThreadClock();
  TimelineState& state = *g_timeline;
  std::unique_lock<std::mutex> hold(state.mutex);
  StreamState* s = &stateOf(state, device, stream);
  const size_t depth = size_t(std::max<int64_t>(config().launch_queue, 1));
  if (s->queue.size() == depth) {
    Tail oldest = s->queue[s->next];
    if (oldest.known()) {
      if (spoolKeepsNow()) spoolWait(clock.id, clock.now_ps.load(), oldest.bound_ps, "the launch queue is full");
      clock.notBefore(oldest.bound_ps);
    } else {
      hold.unlock();
      synchronize(oldest, "the launch queue is full");
      hold.lock();
      s = &stateOf(state, device, stream);
    }
  }
  s->tail.simplify();
  s->tail.notBefore(clock.now_ps.load(std::memory_order_relaxed) + config().host.launch_latency_ps);
  addSpan({s->tail, duration_ps, nullptr, kernel, streamKey(device, stream), SpanKind::kCompute});
  s->tail.add(duration_ps);
  if (s->queue.size() < depth) {
    s->queue.push_back(s->tail);
  } else {
    s->queue[s->next] = s->tail;
    s->next = (s->next + 1) % depth;
  }
  if (!config().blocking_launches) return;
  Tail end = s->tail;
  hold.unlock();
  if (end.known()) {  // the common case: no wait worth a record
    clock.notBefore(end.bound_ps);
  } else {
    waitFor(std::move(end), "the CPU runs a kernel");
  }
}

Tail streamTail(DeviceIndex device, StreamId stream) {
  std::lock_guard<std::mutex> hold(g_timeline->mutex);
  auto found = g_timeline->streams.find({device, stream});
  return found == g_timeline->streams.end() ? Tail() : found->second.tail;
}

Tail joinTails(Tail a, Tail b) {
  a.simplify();
  b.simplify();
  if (!a.node || !b.node || a.node == b.node) {
    Tail out = a.node ? std::move(a) : Tail(a.bound_ps);
    if (b.node) {
      out.offset_ps = out.node ? std::max(out.offset_ps, b.offset_ps) : b.offset_ps;
      out.node = b.node;
    }
    out.notBefore(b.bound_ps);
    return out;
  }
  NodePtr joined = newNode();
  record([&](Packer& p) {
    wire::Node made{.node = int64_t(joined->id)};
    // One of the two may have been resolved since; the simulator still knows it, since no later batch was acknowledged.
    a.simplify();
    b.simplify();
    for (const Tail* t : {&a, &b}) {
      if (t->node) made.dependencies.push_back({.node = int64_t(t->node->id), .offset_ps = t->offset_ps});
    }
    made.bound_ps = std::max(a.bound_ps, b.bound_ps);
    made.write(p);
  });
  Tail out(std::move(joined));
  out.bound_ps = std::max(a.bound_ps, b.bound_ps);
  return out;
}

Tail deviceTail(DeviceIndex device) {
  std::vector<Tail> tails;
  {
    std::lock_guard<std::mutex> hold(g_timeline->mutex);
    for (auto& [key, s] : g_timeline->streams) {
      if (key.first == device) tails.push_back(s.tail);
    }
  }
  Tail out;
  for (Tail& tail : tails) out = joinTails(std::move(out), std::move(tail));
  return out;
}

void streamWait(DeviceIndex device, StreamId stream, const Tail& tail) {
  Tail current = streamTail(device, stream);
  Tail joined = joinTails(std::move(current), tail);
  std::lock_guard<std::mutex> hold(g_timeline->mutex);
  stateOf(*g_timeline, device, stream).tail = std::move(joined);
}

Tail occupyStream(DeviceIndex device, StreamId stream, const NodePtr& node, const std::string& what) {
  Clock& clock = thisThreadClock();
  const uint32_t kernel = internKernel(what, "communication", "network");
  std::lock_guard<std::mutex> hold(g_timeline->mutex);
  StreamState& s = stateOf(*g_timeline, device, stream);
  s.tail.simplify();
  s.tail.notBefore(clock.now_ps.load(std::memory_order_relaxed) + config().host.launch_latency_ps);
  Tail ready = s.tail;
  addSpan({ready, 0, node, kernel, streamKey(device, stream), SpanKind::kCommunication});
  s.tail = Tail(node);
  s.tail.bound_ps = ready.bound_ps;
  return ready;
}

void synchronize(Tail tail, const char* why) {
  if (offClock()) return;
  refuseInCapture(why);
  const HookScope scope;
  chargeHost(HostWork::kSync);
  waitFor(std::move(tail), why);
}

void waitFor(Tail tail, const char* why) {
  Clock& clock = thisThreadClock();
  const bool keep = spoolKeepsNow();
  const Picoseconds from_ps = clock.now_ps.load();
  std::string reason = why;
  if (keep || !tail.known()) {
    const std::string where = pythonLocation();
    if (!where.empty()) reason += " at " + where;
  }
  if (!tail.known()) {
    const uint64_t request = newRequest();
    clock.waiting = true;
    record([&](Packer& p) {
      wire::Sync{
          .request = int64_t(request), .clock = clock.id, .tail = tail, .now_ps = clock.now_ps.load(), .why = reason}
          .write(p);
    });
    tail = Tail(awaitAnswer(request));
  }
  if (keep) spoolWait(clock.id, from_ps, tail.bound_ps, reason);
  clock.notBefore(tail.bound_ps);
  settleHostCopies();
}

bool query(Tail tail) {
  if (offClock()) return true;
  const HookScope scope;
  chargeHost(HostWork::kQuery);
  Clock& clock = thisThreadClock();
  const Picoseconds now_ps = clock.now_ps.load();
  tail.simplify();
  if (tail.bound_ps > now_ps) return false;
  if (!tail.node) return true;
  const uint64_t request = newRequest();
  clock.waiting = true;
  record([&](Packer& p) {
    wire::Query{.request = int64_t(request), .clock = clock.id, .tail = tail, .now_ps = now_ps}.write(p);
  });
  return awaitAnswer(request) != 0;
}

std::string pythonLocation() {
  if (!Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) return "";
  pybind11::gil_scoped_acquire gil;
  // The innermost frame outside torch and outside the hooks is the line that the user wrote.
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  std::string innermost;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const std::string name = file != nullptr ? file : "?";
    const std::string at = name + ":" + std::to_string(PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    if (innermost.empty()) innermost = at;
    const bool library = name.find("/site-packages/torch/") != std::string::npos ||
                         name.find("/interpose/") != std::string::npos || name.rfind("<", 0) == 0;
    if (!library) {
      Py_DECREF(frame);
      return at;
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  PyErr_Clear();
  return innermost;
}

void resetTimelineAfterFork() { g_timeline = new TimelineState; }

}  // namespace phantom
