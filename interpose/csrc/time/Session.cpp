#include "core/Records.h"
#include "time/Session.h"

#include "time/Clock.h"
#include "time/SessionPython.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <map>
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
  uint32_t records = 0;   // in `packer`
  uint64_t received = 0;  // EngineBatches
  uint64_t next_node = 1, next_request = 1;
  std::unordered_map<uint64_t, NodePtr> unresolved;
  std::unordered_map<uint64_t, Picoseconds> answers;
  // By node and place in its launch.
  std::map<std::pair<uint64_t, uint64_t>, ValueHandler> value_handlers;
  std::optional<std::string> abort;
};

SessionState* g_session = new SessionState;
std::atomic<bool> g_session_open{false};

// A batch is one array of records, so that a part of one is never taken for the whole.
std::string takeBatch(SessionState& state) {
  Packer batch;
  batch.longArray(state.records);
  std::string out = std::move(batch.buffer());
  out.append(state.packer.buffer());
  state.packer.buffer().clear();
  state.records = 0;
  return out;
}

// Nodes and their ends in turn.
void resolve(SessionState& state, const std::vector<int64_t>& ends) {
  for (size_t i = 0; i + 1 < ends.size(); i += 2) {
    auto found = state.unresolved.find(uint64_t(ends[i]));
    if (found == state.unresolved.end()) continue;
    found->second->end_ps.store(ends[i + 1], std::memory_order_release);
    state.unresolved.erase(found);
  }
}

// Clocks that moved since the simulator last heard of them. The caller holds the state's mutex.
void packClocks(SessionState& state) {
  if (state.said_bye) return;
  forEachClock([&](Clock& clock) {
    if (clock.waiting) return;
    const Picoseconds now = clock.now_ps.load();
    if (now == clock.reported_ps.load()) return;
    clock.reported_ps = now;
    wire::Clock{.clock = clock.id, .now_ps = now}.write(state.packer);
    ++state.records;
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
  ++state.records;
  if (first) state.outgoing.notify_all();
}

void sayBye() {
  record([](Packer& p) {  // holds the mutex
    wire::Bye{}.write(p);
    g_session->said_bye = true;
  });
  flush();
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
  if (state.packer.buffer().empty()) return std::make_pair(std::string(), state.received);
  return std::make_pair(takeBatch(state), state.received);
}

void onMessage(std::string_view batch) {
  SessionState& state = *g_session;
  std::vector<std::pair<ValueHandler, std::optional<std::string>>> values;
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    ++state.received;
    Unpacker in(batch);
    for (size_t left = in.array(); left > 0; --left) {
      const size_t size = in.array();
      const auto type = wire::EngineRecord(in.integer());
      const size_t fields = size - 1;
      switch (type) {
        case wire::EngineRecord::kWelcome: wire::Welcome::read(in, fields); break;
        case wire::EngineRecord::kAnswer: {
          const auto answer = wire::Answer::read(in, fields);
          state.answers[uint64_t(answer.request)] = answer.value;
          break;
        }
        case wire::EngineRecord::kResolved: resolve(state, wire::Resolved::read(in, fields).ends); break;
        case wire::EngineRecord::kValueOf: {
          auto value = wire::ValueOf::read(in, fields);
          auto found = state.value_handlers.find({uint64_t(value.node), uint64_t(value.index)});
          if (found != state.value_handlers.end()) {
            values.emplace_back(std::move(found->second), std::move(value.value));
            state.value_handlers.erase(found);
          }
          break;
        }
        case wire::EngineRecord::kAbort: {
          const auto abort = wire::Abort::read(in, fields);
          if (!state.abort) state.abort = "phantom: " + abort.kind + ": " + abort.message;
          break;
        }
        default: throw std::runtime_error("the simulator sent a record of unknown type");
      }
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
  g_session->value_handlers[{node->id, index}] = std::move(handler);
}

}  // namespace phantom
