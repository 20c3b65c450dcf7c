#include "time/Spool.h"

#include "core/Registry.h"
#include "core/Msgpack.h"
#include "time/Timeline.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace phantom {
namespace {

// Rows as they lie in the file: little-endian, no padding (spool.py holds the same as numpy dtypes).
struct SpanRow {
  int64_t start_ps, end_ps;
  uint64_t node;
  uint32_t stream, kernel;  // highest bit of `kernel`: communication
};
struct WaitRow {
  int64_t start_ps, end_ps;
  uint32_t clock, why;
};
struct MemoryRow {
  int64_t time_ps;
  uint64_t address;
  int64_t bytes, allocated_bytes, reserved_bytes;
  uint32_t device, phase;
};
static_assert(sizeof(SpanRow) == 32 && sizeof(WaitRow) == 24 && sizeof(MemoryRow) == 48);

constexpr size_t kRows = 4096;
constexpr int kVersion = 1;

struct SpoolState {
  std::mutex mutex;
  FILE* file = nullptr;
  int64_t first_step = 0, last_step = 0;
  std::atomic<int64_t> step{0};
  std::atomic<bool> open{false};
  std::vector<SpanRow> spans;
  std::vector<WaitRow> waits;
  std::vector<MemoryRow> memory;
  std::map<std::string, uint32_t> reasons;
};

SpoolState* g_spool = new SpoolState;

void write(SpoolState& state, Packer& p) { std::fwrite(p.buffer().data(), 1, p.buffer().size(), state.file); }

template <typename Row>
void writeRows(SpoolState& state, const char* name, std::vector<Row>& rows) {
  if (rows.empty()) return;
  Packer p;
  p.array(2);
  p.string(name);
  p.binary(rows.data(), rows.size() * sizeof(Row));
  write(state, p);
  rows.clear();
}

void writeAll(SpoolState& state) {
  writeRows(state, "spans", state.spans);
  writeRows(state, "waits", state.waits);
  writeRows(state, "memory", state.memory);
}

}  // namespace

void openSpool(const std::string& path, int rank, int64_t first_step, int64_t last_step) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  TORCH_CHECK(state.file == nullptr, "this rank writes its detail to a file already");
  state.file = std::fopen(path.c_str(), "wb");
  TORCH_CHECK(state.file != nullptr, "cannot write ", path, ": ", std::strerror(errno));
  state.first_step = first_step;
  state.last_step = last_step;
  Packer p;
  p.array(2);
  p.string("header");
  p.map(2);
  p.string("version");
  p.integer(kVersion);
  p.string("rank");
  p.integer(rank);
  write(state, p);
  state.open = true;
}

void closeSpool() {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  writeAll(state);
  state.open = false;
  std::fclose(state.file);
  state.file = nullptr;
}

void resetSpoolAfterFork() { g_spool = new SpoolState; }  // the parent's file stays the parent's

bool spoolKeepsStep(int64_t index) {
  SpoolState& state = *g_spool;
  return state.open && index >= state.first_step && index < state.last_step;
}
bool spoolKeepsNow() { return spoolKeepsStep(g_spool->step.load(std::memory_order_relaxed)); }
bool spoolKeepsMemory() {
  SpoolState& state = *g_spool;
  return state.open && state.step.load(std::memory_order_relaxed) < state.last_step;
}
int64_t runningStep() { return g_spool->step.load(std::memory_order_relaxed); }
void spoolStepBegins(int64_t index) { g_spool->step.store(index, std::memory_order_relaxed); }

void spoolKernel(uint32_t kernel, const std::string& name, const std::string& klass, const std::string& source) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  Packer p;
  p.array(5);
  p.string("kernel");
  p.integer(kernel);
  p.string(name);
  p.string(klass);
  p.string(source);
  write(state, p);
}

void spoolSpan(uint32_t stream, uint32_t kernel, Picoseconds start_ps, Picoseconds end_ps, SpanKind kind,
               uint64_t node) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  const uint32_t communication = kind == SpanKind::kCommunication ? 0x80000000u : 0u;
  state.spans.push_back({start_ps, end_ps, node, stream, kernel | communication});
  if (state.spans.size() >= kRows) writeRows(state, "spans", state.spans);
}

void spoolStep(int64_t index, Picoseconds begin_ps, Picoseconds end_ps, Picoseconds compute_ps, Picoseconds exposed_ps,
               Picoseconds idle_ps) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  Packer p;
  p.array(7);
  p.string("step");
  for (int64_t v : {index, begin_ps, end_ps, compute_ps, exposed_ps, idle_ps}) p.integer(v);
  write(state, p);
}

void spoolWait(uint32_t clock, Picoseconds start_ps, Picoseconds end_ps, const std::string& why) {
  SpoolState& state = *g_spool;
  if (end_ps <= start_ps) return;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  auto [at, added] = state.reasons.emplace(why, uint32_t(state.reasons.size()));
  if (added) {
    Packer p;
    p.array(3);
    p.string("why");
    p.integer(at->second);
    p.string(why);
    write(state, p);
  }
  state.waits.push_back({start_ps, end_ps, clock, at->second});
  if (state.waits.size() >= kRows) writeRows(state, "waits", state.waits);
}

void spoolMemory(Picoseconds time_ps, uint32_t device, uint64_t address, int64_t bytes, int64_t allocated_bytes,
                 int64_t reserved_bytes, uint32_t phase) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr) return;
  state.memory.push_back({time_ps, address, bytes, allocated_bytes, reserved_bytes, device, phase});
  if (state.memory.size() >= kRows) writeRows(state, "memory", state.memory);
}

void spoolTag(const std::string& category, const std::vector<uint64_t>& addresses) {
  SpoolState& state = *g_spool;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.file == nullptr || addresses.empty()) return;
  writeRows(state, "memory", state.memory);  // a tag speaks of what was allocated before it
  Packer p;
  p.array(3);
  p.string("tag");
  p.string(category);
  p.binary(addresses.data(), addresses.size() * sizeof(uint64_t));
  write(state, p);
}

namespace {
const Binding bind_spool([](pybind11::module_& m) {
  m.def("spool_open", &openSpool);
  m.def("spool_close", &closeSpool);
});
}  // namespace

}  // namespace phantom
