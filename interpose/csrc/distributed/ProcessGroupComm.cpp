#include "distributed/ProcessGroupComm.h"

#include "time/Clock.h"
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

void packValueField(Packer& p, const std::string& payload, bool later) {
  if (later) p.string("later");
  else if (payload.empty()) p.nil();
  else p.buffer().append(payload);  // a packed array of its own
}

void packIntegers(Packer& p, const std::vector<int64_t>& values) {
  p.array(values.size());
  for (int64_t v : values) p.integer(v);
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
    p.array(5);
    p.integer(6);
    p.string(id_);
    packIntegers(p, global_ranks_);
    p.string(backend_);
    p.string(shown_name_);
  });
}

void Comm::post(const CollectiveRecord& call) {
  const std::string where = pythonLocation();
  Clock& clock = thisThreadClock();
  std::lock_guard<std::mutex> hold(mutex_);  // the sequence number and the record's place in the stream agree
  announce();
  const int64_t sequence = sequence_++;
  record([&](Packer& p) {
    p.array(13);
    p.integer(5);
    p.integer(int64_t(call.node->id));
    p.string(id_);
    p.integer(sequence);
    p.string(call.kind);
    p.string(dtypeName(call.dtype));
    p.integer(call.bytes);
    p.integer(call.root);
    packTail(p, call.ready);
    p.integer(clock.id);
    p.integer(clock.now_ps.load());
    packValueField(p, call.payload, call.value_later);
    p.map(2 + size_t(call.op != nullptr) + size_t(call.has_factor) + size_t(!call.in_splits.empty()) +
          size_t(!call.out_splits.empty()) + size_t(call.coalesced != 1));
    p.string("want");
    p.boolean(call.want);
    p.string("where");
    p.string(where);
    if (call.op != nullptr) {
      p.string("op");
      p.string(call.op);
    }
    if (call.has_factor) {
      p.string("factor");
      p.real(call.factor);
    }
    if (!call.in_splits.empty()) {
      p.string("in_splits");
      packIntegers(p, call.in_splits);
    }
    if (!call.out_splits.empty()) {
      p.string("out_splits");
      packIntegers(p, call.out_splits);
    }
    if (call.coalesced != 1) {
      p.string("coalesced");
      p.integer(call.coalesced);
    }
  });
}

void Comm::post(const NodePtr& node, const Tail& ready, int own_rank, const std::vector<TransferRecord>& transfers) {
  const std::string where = pythonLocation();
  Clock& clock = thisThreadClock();
  std::lock_guard<std::mutex> hold(mutex_);
  announce();
  record([&](Packer& p) {
    p.array(8);
    p.integer(7);
    p.integer(int64_t(node->id));
    p.string(id_);
    packTail(p, ready);
    p.integer(clock.id);
    p.integer(clock.now_ps.load());
    p.array(transfers.size());
    for (const TransferRecord& t : transfers) {
      const auto pair = t.is_send ? std::make_pair(own_rank, t.peer) : std::make_pair(t.peer, own_rank);
      p.array(7);
      p.integer(t.peer);
      p.boolean(t.is_send);
      // A rank's sends to and receives from itself count apart: each side numbers its own calls.
      p.integer(transfers_[{t.is_send ? pair.first : -1 - pair.first, pair.second}]++);
      p.integer(t.bytes);
      p.string(dtypeName(t.dtype));
      packValueField(p, t.payload, t.value_later);
      p.boolean(t.want);
    }
    p.string(where);
  });
}

std::string splitSuffix(int number, const std::vector<int>& parent_ranks) {
  return "split " + std::to_string(number) + " " + digest({parent_ranks.begin(), parent_ranks.end()});
}

void recordSupply(const NodePtr& node, uint32_t index, const std::string& payload) {
  record([&](Packer& p) {
    p.array(4);
    p.integer(19);
    p.integer(int64_t(node->id));
    p.integer(index);
    packValueField(p, payload, false);
  });
}

}  // namespace phantom
