#include "time/Accounting.h"
#include "time/UnsettledSteps.h"

#include "time/Clock.h"
#include "time/Session.h"
#include "time/Spool.h"

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <set>

namespace phantom {
namespace {

struct Kernel {
  std::string name, klass, source;
  uint64_t count = 0;
  Picoseconds total_ps = 0;
};
struct Mark {
  int64_t index;
  Tail end;
  Picoseconds ideal_ps = 0;  // counted until then
};

struct Interval {
  Picoseconds start_ps, end_ps;
};

struct AccountingState {
  std::mutex mutex;
  std::vector<Kernel> kernels;
  std::map<std::string, uint32_t> kernel_ids;
  std::deque<Span> spans;
  std::deque<Mark> marks;
  std::vector<wire::SettledStep> unsent;
  Picoseconds first_kernel_ps = -1, settled_until_ps = -1;
  std::vector<std::string> warnings;
  std::set<std::string> warned;
  std::chrono::steady_clock::time_point last_sent{};
  size_t spooled_kernels = 0;
  Picoseconds ideal_ps = 0, ideal_first_step_ps = -1, ideal_settled_ps = 0;
};

AccountingState* g_accounting = new AccountingState;

struct Entry {
  wire::AccountField field;
  void (*pack)(Packer&);
};
std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

Picoseconds unionLength(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.start_ps < b.start_ps; });
  Picoseconds length = 0, covered_until = INT64_MIN;
  for (const Interval& i : intervals) {
    const Picoseconds from = std::max(i.start_ps, covered_until);
    if (i.end_ps > from) {
      length += i.end_ps - from;
      covered_until = i.end_ps;
    }
  }
  return length;
}

// End of a span whose start is known; kUnresolved if its node is not.
Picoseconds spanEnd(const Span& span) {
  if (!span.end_node) return span.start.bound_ps + span.duration_ps;
  return span.end_node->end_ps.load(std::memory_order_acquire);
}

void keepSpan(AccountingState& state, const Span& span, Picoseconds end_ps) {
  for (; state.spooled_kernels < state.kernels.size(); ++state.spooled_kernels) {
    const Kernel& k = state.kernels[state.spooled_kernels];
    spoolKernel(uint32_t(state.spooled_kernels), k.name, k.klass, k.source);
  }
  spoolSpan(span.stream, span.kernel, span.start.bound_ps, end_ps, span.kind, span.end_node ? span.end_node->id : 0);
}

// Settles the oldest mark if everything that can lie before its end is known. Caller holds the mutex.
bool settleOldest(AccountingState& state, Picoseconds earliest_clock_ps) {
  if (state.marks.empty() || !state.marks.front().end.known()) return false;
  const Mark mark = state.marks.front();
  const Picoseconds end_ps = mark.end.bound_ps;
  if (earliest_clock_ps < end_ps) return false;  // a span yet to be launched could still start before the end
  for (Span& span : state.spans) {
    if (!span.start.known() || spanEnd(span) == kUnresolved) {
      if (span.start.bound_ps < end_ps) return false;
    }
  }
  const Picoseconds begin_ps =
      state.settled_until_ps >= 0 ? state.settled_until_ps : std::max<Picoseconds>(state.first_kernel_ps, 0);
  const bool keep = spoolKeepsStep(mark.index);
  std::vector<Interval> compute, any;
  std::deque<Span> later;
  for (Span& span : state.spans) {
    const bool known = span.start.known() && spanEnd(span) != kUnresolved;
    const Picoseconds span_end = known ? spanEnd(span) : INT64_MAX;
    if (known && span.start.bound_ps < end_ps) {
      const Interval clipped{std::max(span.start.bound_ps, begin_ps), std::min(span_end, end_ps)};
      if (clipped.end_ps > clipped.start_ps) {
        any.push_back(clipped);
        if (span.kind == SpanKind::kCompute) compute.push_back(clipped);
      }
    }
    if (span_end > end_ps) later.push_back(span);
    else if (keep) keepSpan(state, span, span_end);
  }
  state.spans.swap(later);
  const Picoseconds compute_ps = unionLength(compute);
  const Picoseconds busy_ps = unionLength(any);
  const Picoseconds total_ps = std::max<Picoseconds>(end_ps - begin_ps, 0);
  state.unsent.push_back({mark.index, end_ps, compute_ps, busy_ps - compute_ps, total_ps - busy_ps});
  if (keep) spoolStep(mark.index, begin_ps, end_ps, compute_ps, busy_ps - compute_ps, total_ps - busy_ps);
  state.settled_until_ps = end_ps;
  if (state.ideal_first_step_ps < 0) state.ideal_first_step_ps = mark.ideal_ps;
  state.ideal_settled_ps = mark.ideal_ps;
  state.marks.pop_front();
  return true;
}

}  // namespace

uint32_t internKernel(const std::string& name, const std::string& klass, const std::string& source) {
  AccountingState& state = *g_accounting;
  std::lock_guard<std::mutex> hold(state.mutex);
  const std::string key = name + '\n' + klass + '\n' + source;
  auto [at, added] = state.kernel_ids.emplace(key, uint32_t(state.kernels.size()));
  if (added) state.kernels.push_back({name, klass, source});
  return at->second;
}

void countKernel(uint32_t kernel, Picoseconds duration_ps) {
  std::lock_guard<std::mutex> hold(g_accounting->mutex);
  Kernel& k = g_accounting->kernels.at(kernel);
  ++k.count;
  k.total_ps += duration_ps;
}

void countIdeal(Picoseconds ideal_ps) {
  std::lock_guard<std::mutex> hold(g_accounting->mutex);
  g_accounting->ideal_ps += ideal_ps;
}

void addSpan(Span span) {
  AccountingState& state = *g_accounting;
  std::lock_guard<std::mutex> hold(state.mutex);
  if (state.first_kernel_ps < 0) {
    span.start.simplify();
    state.first_kernel_ps = span.start.bound_ps;
  }
  if (!span.end_node) {
    Kernel& k = state.kernels[span.kernel];
    ++k.count;
    k.total_ps += span.duration_ps;
  }
  if (sessionOpen()) state.spans.push_back(std::move(span));
}

void markStep(int64_t index, Tail end) {
  std::lock_guard<std::mutex> hold(g_accounting->mutex);
  auto& marks = g_accounting->marks;
  if (marks.empty() || marks.back().index != index) marks.push_back({index, Tail()});
  marks.back().end = std::move(end);
  marks.back().ideal_ps = g_accounting->ideal_ps;
  spoolStepBegins(index + 1);
}

std::vector<Tail> unsettledTails() {
  std::lock_guard<std::mutex> hold(g_accounting->mutex);
  std::vector<Tail> out;
  for (Mark& mark : g_accounting->marks) {
    if (!mark.end.known()) out.push_back(mark.end);
  }
  for (Span& span : g_accounting->spans) {
    if (!span.start.known()) out.push_back(span.start);
    if (spanEnd(span) == kUnresolved) out.push_back(Tail(span.end_node));
  }
  return out;
}

void settleSteps(bool force) {
  AccountingState& state = *g_accounting;
  const Picoseconds earliest_ps = force ? INT64_MAX : earliestClock();
  {
    std::lock_guard<std::mutex> hold(state.mutex);
    // The newest mark may still be replaced by a later optimizer step of the same run, so it is settled only at the end.
    while (state.marks.size() > (force ? 0 : 1) && settleOldest(state, earliest_ps)) {}
    if (force && spoolKeepsNow()) {  // what came after the last step, or all of a job without steps
      for (Span& span : state.spans) {
        if (span.start.known() && spanEnd(span) != kUnresolved) keepSpan(state, span, spanEnd(span));
      }
    }
    const auto now = std::chrono::steady_clock::now();
    if (!force && (state.unsent.empty() || now - state.last_sent < std::chrono::seconds(1))) return;
    state.last_sent = now;
  }
  sendStats();
}

void sendStats() {
  Packer packer;
  packer.array(2);
  packer.integer(int64_t(wire::RankRecord::kStats));
  packStats(packer);
  record([&](Packer& out) { out.buffer().append(packer.buffer()); });
}

void packStats(Packer& p) {
  AccountingState& state = *g_accounting;
  std::lock_guard<std::mutex> hold(state.mutex);
  const auto put = [&p](wire::AccountField field, const auto& value) {
    p.string(wire::kAccountFields[size_t(field)]);
    wire::put(p, value);
  };
  p.map(9 + entries().size());
  put(wire::AccountField::kSteps, state.unsent);
  state.unsent.clear();
  put(wire::AccountField::kFirstKernelPs, int64_t(state.first_kernel_ps));
  // Until the end of the first step, and of the last settled one.
  put(wire::AccountField::kIdealFirstStepPs, std::max<int64_t>(state.ideal_first_step_ps, 0));
  put(wire::AccountField::kIdealPs, int64_t(state.ideal_settled_ps));
  std::map<std::string, wire::Total> classes;
  std::map<std::string, int64_t> sources;
  std::vector<const Kernel*> top;
  std::map<std::string, int64_t> unpriced;
  for (const Kernel& k : state.kernels) {
    if (k.count == 0) continue;
    if (k.source == "unpriced") unpriced[k.name] += int64_t(k.count);
    auto& c = classes[k.klass];
    c.count += int64_t(k.count);
    c.total_ps += k.total_ps;
    sources[k.source] += k.total_ps;
    top.push_back(&k);
  }
  std::sort(top.begin(), top.end(), [](const Kernel* a, const Kernel* b) {
    return a->total_ps != b->total_ps ? a->total_ps > b->total_ps : a->name < b->name;
  });
  if (top.size() > 50) top.resize(50);
  std::vector<wire::TopKernel> longest;
  for (const Kernel* k : top) {
    longest.push_back(
        {.name = k->name, .source = k->source, .count = int64_t(k->count), .total_ps = k->total_ps, .klass = k->klass});
  }
  put(wire::AccountField::kKernels, classes);
  put(wire::AccountField::kSources, sources);
  put(wire::AccountField::kTop, longest);
  put(wire::AccountField::kUnpriced, unpriced);
  put(wire::AccountField::kWarnings, state.warnings);
  for (const Entry& e : entries()) {
    p.string(wire::kAccountFields[size_t(e.field)]);
    e.pack(p);
  }
}

StatsEntry::StatsEntry(wire::AccountField field, void (*pack)(Packer&)) { entries().push_back({field, pack}); }

void addWarning(const std::string& text) {
  std::lock_guard<std::mutex> hold(g_accounting->mutex);
  if (g_accounting->warned.insert(text).second) g_accounting->warnings.push_back(text);
}

void resetAccountingAfterFork() {
  AccountingState* old = g_accounting;
  g_accounting = new AccountingState;
  // The kernel table survives: the metadata cache of the parent refers to it by index.
  g_accounting->kernels = old->kernels;
  g_accounting->kernel_ids = old->kernel_ids;
  for (Kernel& k : g_accounting->kernels) k.count = 0, k.total_ps = 0;
}

}  // namespace phantom
