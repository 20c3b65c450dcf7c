#include "time/Session.h"

#include "time/Clock.h"
#include "time/SessionPython.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <unordered_map>

namespace phantom {
namespace {

using std::chrono::milliseconds;

// Records wait at most this long before they are sent, so that the simulator's view is never far behind.
constexpr auto kFlushInterval = milliseconds(2);
constexpr auto kSignalInterval = milliseconds(50);
constexpr auto kHeartbeat = milliseconds(1000);

// Replaced as a whole in a forked child.
struct SessionState {
  std::mutex mutex;
  std::condition_variable outgoing, incoming;
  bool open = false, closing = false, flush = false, said_bye = false;
  Packer packer;
  uint64_t received = 0;  // EngineBatches
  uint64_t next_node = 1, next_request = 1;
  std::unordered_map<uint64_t, NodePtr> unresolved;
  std::unordered_map<uint64_t, Picoseconds> answers;
  std::unordered_map<uint64_t, ValueHandler> value_handlers;  // key: node * 4096 + index
  std::optional<std::string> abort;
};

SessionState* g_session = new SessionState;
std::atomic<bool> g_session_open{false};

uint64_t valueKey(uint64_t node, uint64_t index) { return node * 4096 + index; }

// Clocks that moved since the simulator last heard of them. The caller holds the state's mutex.
void packClocks(SessionState& state) {
  if (state.said_bye) return;
  forEachClock([&](Clock& clock) {
    if (clock.waiting) return;
    const Picoseconds now = clock.now_ps.load();
    if (now == clock.reported_ps.load()) return;
    clock.reported_ps = now;
    state.packer.array(3);
    state.packer.integer(2);
    state.packer.integer(clock.id);
    state.packer.integer(now);
  });
}

bool clocksMoved() {
  bool moved = false;
  forEachClock([&](Clock& clock) { moved |= !clock.waiting && clock.now_ps.load() != clock.reported_ps.load(); });
  return moved;
}

void checkPythonSignals() {
  if (!Py_IsInitialized()) return;
  // Only a thread that Python knows may ask; autograd threads have no Python state of their own to lose.
  if (PyGILState_GetThisThreadState() == nullptr) return;
  pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace

bool sessionOpen() { return g_session_open.load(std::memory_order_acquire); }

void openSession() {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  TORCH_CHECK(!g_session->open, "the session with the simulator is open already");
  g_session->open = true;
  g_session_open.store(true, std::memory_order_release);
}

void closeSession() {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  g_session->closing = true;
  g_session_open.store(false, std::memory_order_release);
  g_session->outgoing.notify_all();
}

void resetSessionAfterFork() {
  g_session = new SessionState;
  g_session_open = false;
}

NodePtr newNode() {
  TORCH_CHECK(sessionOpen(),
              "this process is no rank of a simulated job, so that a collective or a wait on another rank cannot be "
              "simulated; start the job with `phantom run`");
  std::lock_guard<std::mutex> hold(g_session->mutex);
  auto node = c10::make_intrusive<Node>(g_session->next_node++);
  g_session->unresolved.emplace(node->id, node);
  return node;
}

void record(const std::function<void(Packer&)>& write) {
  SessionState& state = *g_session;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (!state.open || state.said_bye) return;
  const bool first = state.packer.buffer().empty();
  write(state.packer);
  if (first) state.outgoing.notify_all();
}

void sayBye() {
  record([](Packer& p) {  // holds the mutex
    p.array(2);
    p.integer(17);
    p.map(0);
    g_session->said_bye = true;
  });
  flush();
}

void packTail(Packer& packer, Tail tail) {
  tail.simplify();
  packer.array(3);
  packer.integer(tail.node ? int64_t(tail.node->id) : 0);
  packer.integer(tail.node ? tail.offset_ps : 0);
  packer.integer(tail.bound_ps);
}

void flush() {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  g_session->flush = true;
  g_session->outgoing.notify_all();
}

std::optional<std::pair<std::string, uint64_t>> nextBatch(double timeout_s) {
  SessionState& state = *g_session;
  std::unique_lock<std::mutex> hold(state.mutex);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  // A rank that computes for long without a record still tells its clock once a second.
  const auto heartbeat = std::chrono::steady_clock::now() + kHeartbeat;
  while (state.packer.buffer().empty() && !state.closing) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return std::make_pair(std::string(), state.received);
    if (now >= heartbeat && clocksMoved()) break;
    state.outgoing.wait_until(hold,
                              std::min(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline),
                                       std::chrono::steady_clock::now() + kHeartbeat));
  }
  if (!state.flush && !state.closing)
    state.outgoing.wait_for(hold, kFlushInterval, [&] { return state.flush || state.closing; });
  state.flush = false;
  packClocks(state);
  if (state.packer.buffer().empty() && state.closing) return std::nullopt;
  std::string out;
  out.swap(state.packer.buffer());
  return std::make_pair(std::move(out), state.received);
}

void onMessage(std::string_view records) {
  SessionState& state = *g_session;
  std::vector<std::pair<ValueHandler, std::optional<std::string>>> values;
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    ++state.received;
    Unpacker in(records);
    while (!in.done()) {
      size_t left = in.array();
      const int64_t type = in.integer();
      --left;
      if (type == 2) {
        const uint64_t request = uint64_t(in.integer());
        state.answers[request] = in.integer();
        left -= 2;
      } else if (type == 3) {
        size_t n = in.array();
        for (; n >= 2; n -= 2) {
          const uint64_t id = uint64_t(in.integer());
          const Picoseconds end_ps = in.integer();
          auto found = state.unresolved.find(id);
          if (found != state.unresolved.end()) {
            found->second->end_ps.store(end_ps, std::memory_order_release);
            state.unresolved.erase(found);
          }
        }
        left -= 1;
      } else if (type == 4) {
        const uint64_t node = uint64_t(in.integer());
        const uint64_t index = uint64_t(in.integer());
        std::optional<std::string> payload;
        if (in.isNil()) in.nil();
        else payload = std::string(in.raw());
        left -= 3;
        auto found = state.value_handlers.find(valueKey(node, index));
        if (found != state.value_handlers.end()) {
          values.emplace_back(std::move(found->second), std::move(payload));
          state.value_handlers.erase(found);
        }
      } else if (type == 5) {
        const std::string kind(in.bytes());
        const std::string message(in.bytes());
        left -= 2;
        if (!state.abort) state.abort = "phantom: " + kind + ": " + message;
      }
      for (; left > 0; --left) in.skip();
    }
  }
  for (auto& [handler, payload] : values) handler(std::move(payload));
  state.incoming.notify_all();
}

void abortSession(const std::string& text) {
  {
    std::lock_guard<std::mutex> hold(g_session->mutex);
    if (!g_session->abort) g_session->abort = text;
  }
  g_session->incoming.notify_all();
}

std::optional<std::string> abortText() {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  return g_session->abort;
}

uint64_t newRequest() {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  return g_session->next_request++;
}

void throwIfAborted() {
  auto text = abortText();
  if (text) C10_THROW_ERROR(DistBackendError, *text);
}

void notifySession() { g_session->incoming.notify_all(); }

void awaitCondition(const std::function<bool()>& ready) {
  std::optional<pybind11::gil_scoped_release> without_gil;
  if (Py_IsInitialized() && PyGILState_Check()) without_gil.emplace();
  SessionState& state = *g_session;
  for (;;) {
    {
      std::unique_lock<std::mutex> hold(state.mutex);
      const auto until = std::chrono::steady_clock::now() + kSignalInterval;
      bool done = false;
      while (!(done = ready()) && !state.abort) {
        if (state.incoming.wait_until(hold, until) == std::cv_status::timeout) break;
      }
      if (done) return;
      if (state.abort) {
        const std::string text = *state.abort;
        hold.unlock();
        C10_THROW_ERROR(DistBackendError, text);
      }
    }
    checkPythonSignals();
  }
}

Picoseconds awaitAnswer(uint64_t request) {
  flush();
  Clock& clock = thisThreadClock();
  SessionState& state = *g_session;
  Picoseconds answer = 0;
  struct Waiting {
    Clock& clock;
    ~Waiting() { clock.waiting = false; }
  } waiting{clock};
  awaitCondition([&] {
    auto found = state.answers.find(request);
    if (found == state.answers.end()) return false;
    answer = found->second;
    state.answers.erase(found);
    return true;
  });
  hookLeft();
  return answer;
}

void onValue(const NodePtr& node, uint32_t index, ValueHandler handler) {
  std::lock_guard<std::mutex> hold(g_session->mutex);
  g_session->value_handlers[valueKey(node->id, index)] = std::move(handler);
}

}  // namespace phantom
