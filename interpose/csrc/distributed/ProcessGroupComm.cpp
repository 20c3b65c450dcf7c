#include "distributed/ProcessGroupComm.h"

#include "time/Clock.h"
#include "core/Records.h"
#include "core/DtypeName.h"
#include "time/Timeline.h"

#include <c10/util/Exception.h>

#include <cstdio>

namespace phantom {
namespace {

// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
std::string digest(const std::vector<int64_t>& ranks) {
  uint64_t hash = 14695981039346656037ull;
  for (int64_t rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ uint64_t((rank >> shift) & 0xff)) * 1099511628211ull;
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

int nextInstance(const std::string& base) {
  static std::mutex mutex;
  static std::map<std::string, int> made;
  std::lock_guard<std::mutex> hold(mutex);
  return made[base]++;
}

}  // namespace

Comm::Comm(const char* backend, std::string name, std::vector<int64_t> global_ranks, std::string shown_name)
    : backend_(backend), shown_name_(std::move(shown_name)), global_ranks_(std::move(global_ranks)) {
  const std::string base = backend_ + "/" + name + "/" + digest(global_ranks_);
  id_ = base + "/" + std::to_string(nextInstance(base));
}

Comm::Comm(const Comm& parent, const std::string& suffix, std::vector<int64_t> global_ranks)
    : backend_(parent.backend_),
      id_(parent.id_ + "/" + suffix),
      shown_name_(parent.shown_name_ + " " + suffix),
      global_ranks_(std::move(global_ranks)) {}

void Comm::announce() {
  if (announced_) return;
  announced_ = true;
  record([&](Packer& p) {
    wire::Comm{.comm = id_, .ranks = global_ranks_, .backend = backend_, .label = shown_name_}.write(p);
  });
}

void Comm::post(const CollectiveRecord& call) {
  const std::string where = pythonLocation();
  Clock& clock = thisThreadClock();
  std::lock_guard<std::mutex> hold(mutex_);  // the sequence number and the record's place in the stream agree
  announce();
  const int64_t sequence = sequence_++;
  record([&](Packer& p) {
    wire::Collective made{.node = int64_t(call.node->id), .comm = id_, .seq = sequence, .kind = call.kind};
    made.dtype = dtypeName(call.dtype);
    made.size_bytes = call.bytes;
    made.root = call.root;
    made.ready = call.ready;
    made.clock = clock.id;
    made.now_ps = clock.now_ps.load();
    made.value = {.packed = call.payload, .later = call.value_later};
    made.where = where;
    made.want = call.want;
    if (call.op != nullptr) made.op = call.op;
    if (call.has_factor) made.factor = call.factor;
    if (!call.in_splits.empty()) made.in_splits = call.in_splits;
    if (!call.out_splits.empty()) made.out_splits = call.out_splits;
    made.write(p);
  });
}

void Comm::post(const NodePtr& node, const Tail& ready, int own_rank, const std::vector<TransferRecord>& transfers) {
  const std::string where = pythonLocation();
  Clock& clock = thisThreadClock();
  std::lock_guard<std::mutex> hold(mutex_);
  announce();
  record([&](Packer& p) {
    wire::P2P made{
        .node = int64_t(node->id), .comm = id_, .ready = ready, .clock = clock.id, .now_ps = clock.now_ps.load()};
    made.where = where;
    for (const TransferRecord& t : transfers) {
      const auto pair = t.is_send ? std::make_pair(own_rank, t.peer) : std::make_pair(t.peer, own_rank);
      // A rank's sends to and receives from itself count apart: each side numbers its own calls.
      const int64_t sequence = transfers_[{t.is_send ? pair.first : -1 - pair.first, pair.second}]++;
      made.sides.push_back({.peer = t.peer,
                            .is_send = t.is_send,
                            .seq = sequence,
                            .size_bytes = t.bytes,
                            .dtype = dtypeName(t.dtype),
                            .value = {.packed = t.payload, .later = t.value_later},
                            .want = t.want});
    }
    made.write(p);
  });
}

std::string splitSuffix(int number, const std::vector<int>& parent_ranks) {
  return "split " + std::to_string(number) + " " + digest({parent_ranks.begin(), parent_ranks.end()});
}

void recordSupply(const NodePtr& node, uint32_t index, const std::string& payload) {
  record([&](Packer& p) {
    wire::Supply{.node = int64_t(node->id), .index = index, .value = {.packed = payload}}.write(p);
  });
}

}  // namespace phantom
