// Where each step's time went on this rank: device spans, settled once the simulator has fixed their nodes.
#pragma once

#include "core/Records.h"
#include "core/Msgpack.h"
#include "time/Timeline.h"

#include <functional>

namespace phantom {

// Device work from `start` on: a kernel ends `duration_ps` later, a collective when `end_node` does.
struct Span {
  Tail start;
  Picoseconds duration_ps = 0;
  NodePtr end_node;
  uint32_t kernel = 0;
  uint32_t stream = 0;  // device * 65536 + stream id, for the timeline
  SpanKind kind = SpanKind::kCompute;
};

void countKernel(uint32_t kernel, Picoseconds duration_ps);  // towards the totals by class and source
void countIdeal(Picoseconds ideal_ps);  // a kernel's matrix products at the peak of their data type, for utilisation
void addSpan(Span span);
// The device's tail at the end of optimizer step `index`; a later call with the same index replaces an earlier one.
void markStep(int64_t index, Tail end);
// Settles the steps that can be settled and sends STATS when there is news (at most once a second unless `force`).
void settleSteps(bool force);
void sendStats();
void packStats(Packer& packer);  // the account alone

// Other parts add their own entries to STATS: the field and a function that packs its value.
struct StatsEntry {
  StatsEntry(wire::AccountField field, void (*pack)(Packer&));
};
void addWarning(const std::string& text);  // shown once each in the summary

void resetAccountingAfterFork();

}  // namespace phantom
