// The records of the wire and their fields. Generated from phantom/wire/schema.py by `python -m phantom.wire.generate`.
// clang-format off
#pragma once

#include "core/Msgpack.h"
#include "core/Time.h"

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace phantom::wire {

// A value that is packed already, that a SUPPLY will bring, or (empty) that nobody knows.
struct Value {
  std::string_view packed;
  bool later = false;
};

inline void put(Packer& p, bool v) { p.boolean(v); }
inline void put(Packer& p, int64_t v) { p.integer(v); }
inline void put(Packer& p, double v) { p.real(v); }
inline void put(Packer& p, std::string_view v) { p.string(v); }
inline void put(Packer& p, const std::string& v) { p.string(v); }
inline void put(Packer& p, const Value& v) {
  if (v.later) p.string("later");
  else if (v.packed.empty()) p.nil();
  else p.buffer().append(v.packed);
}
// The caller holds the session's mutex: a node that has been resolved by now is folded into the bound.
inline void put(Packer& p, Tail v) {
  v.simplify();
  p.array(3);
  p.integer(v.node ? int64_t(v.node->id) : 0);
  p.integer(v.node ? v.offset_ps : 0);
  p.integer(v.bound_ps);
}
template <typename T>
void put(Packer& p, const std::optional<T>& v);
template <typename T>
void put(Packer& p, const std::vector<T>& v);
template <typename T>
void put(Packer& p, const std::map<std::string, T>& v);

template <typename T>
void put(Packer& p, const std::optional<T>& v) {
  if (v) put(p, *v);
  else p.nil();
}
template <typename T>
void put(Packer& p, const std::vector<T>& v) {
  p.array(v.size());
  for (const T& each : v) put(p, each);
}
template <typename T>
void put(Packer& p, const std::map<std::string, T>& v) {
  p.map(v.size());
  for (const auto& [key, each] : v) {
    p.string(key);
    put(p, each);
  }
}

inline int64_t checked(int64_t v, int64_t least, int64_t most, const char* field) {
  if (v < least || v > most) {
    throw std::runtime_error(std::string("the simulator sent ") + field + " = " + std::to_string(v) + ", out of its range");
  }
  return v;
}

constexpr int64_t kProtocol = 2;

// The numbers of a rank's records.
enum class RankRecord : int64_t {
  kHello = 1,
  kClock = 2,
  kClockEnd = 3,
  kNode = 4,
  kCollective = 5,
  kComm = 6,
  kP2P = 7,
  kSync = 8,
  kQuery = 9,
  kPost = 10,
  kWait = 11,
  kForget = 12,
  kAdd = 13,
  kStep = 14,
  kStats = 15,
  kFault = 16,
  kBye = 17,
  kTransfer = 18,
  kSupply = 19,
  kWaited = 20,
};

// The numbers of the simulator's records.
enum class EngineRecord : int64_t {
  kWelcome = 1,
  kAnswer = 2,
  kResolved = 3,
  kValueOf = 4,
  kAbort = 5,
};

// A node and the work after it.
struct Dependency {
  int64_t node = 0;
  int64_t offset_ps = 0;

  void write(Packer& p) const {
    p.array(2);
    put(p, node);
    put(p, offset_ps);
  }
};
inline void put(Packer& p, const Dependency& v) { v.write(p); }

// One message of a launch; peer is a group rank, seq counts the messages of the ordered pair.
struct Side {
  int64_t peer = 0;
  bool is_send = false;
  int64_t seq = 0;
  int64_t size_bytes = 0;
  std::string_view dtype;
  Value value;
  bool want = false;

  void write(Packer& p) const {
    p.array(7);
    put(p, peer);
    put(p, is_send);
    put(p, seq);
    put(p, size_bytes);
    put(p, dtype);
    put(p, value);
    put(p, want);
  }
};
inline void put(Packer& p, const Side& v) { v.write(p); }

// A rank's own account of one step.
struct SettledStep {
  int64_t index = 0;
  int64_t end_ps = 0;
  int64_t compute_ps = 0;
  int64_t exposed_ps = 0;
  int64_t idle_ps = 0;

  void write(Packer& p) const {
    p.array(5);
    put(p, index);
    put(p, end_ps);
    put(p, compute_ps);
    put(p, exposed_ps);
    put(p, idle_ps);
  }
};
inline void put(Packer& p, const SettledStep& v) { v.write(p); }

// How often, and for how long in all.
struct Total {
  int64_t count = 0;
  int64_t total_ps = 0;

  void write(Packer& p) const {
    p.array(2);
    put(p, count);
    put(p, total_ps);
  }
};
inline void put(Packer& p, const Total& v) { v.write(p); }

// A kernel that took much of the time.
struct TopKernel {
  std::string_view name;
  std::string_view source;
  int64_t count = 0;
  int64_t total_ps = 0;
  std::string_view klass;

  void write(Packer& p) const {
    p.array(5);
    put(p, name);
    put(p, source);
    put(p, count);
    put(p, total_ps);
    put(p, klass);
  }
};
inline void put(Packer& p, const TopKernel& v) { v.write(p); }

// What the routers of one layer of experts chose; busiest sums each call's fullest expert.
struct Router {
  int64_t layer = 0;
  int64_t experts = 0;
  int64_t choices = 0;
  int64_t calls = 0;
  int64_t tokens = 0;
  int64_t busiest = 0;

  void write(Packer& p) const {
    p.array(6);
    put(p, layer);
    put(p, experts);
    put(p, choices);
    put(p, calls);
    put(p, tokens);
    put(p, busiest);
  }
};
inline void put(Packer& p, const Router& v) { v.write(p); }

// The first record of a session; protocol stands first in every version.
struct Hello {
  int64_t protocol = 0;
  int64_t rank = 0;
  int64_t world_size = 0;
  int64_t local_rank = 0;
  int64_t node = 0;
  int64_t pid = 0;

  void write(Packer& p) const {
    p.array(7);
    p.integer(1);
    put(p, protocol);
    put(p, rank);
    put(p, world_size);
    put(p, local_rank);
    put(p, node);
    put(p, pid);
  }
};

// The clock has reached now_ps; makes it if it is new.
struct Clock {
  int64_t clock = 0;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(3);
    p.integer(2);
    put(p, clock);
    put(p, now_ps);
  }
};

// The thread of this clock is gone.
struct ClockEnd {
  int64_t clock = 0;

  void write(Packer& p) const {
    p.array(2);
    p.integer(3);
    put(p, clock);
  }
};

// A new node that ends at max(bound_ps, end(dependency) + offset_ps, ...).
struct Node {
  int64_t node = 0;
  std::vector<Dependency> dependencies;
  int64_t bound_ps = 0;

  void write(Packer& p) const {
    p.array(4);
    p.integer(4);
    put(p, node);
    put(p, dependencies);
    put(p, bound_ps);
  }
};

// One member's side of a collective. size_bytes is NCCL's message size (all_reduce, broadcast, reduce: the buffer;
// all_gather and reduce_scatter: the larger buffer; all_to_all: the rank's send buffer; gather and scatter: the piece
// times the ranks). want: a VALUE_OF is asked for. factor scales the input of premul_sum. Splits count elements.
struct Collective {
  int64_t node = 0;
  std::string_view comm;
  int64_t seq = 0;
  std::string_view kind;
  std::string_view dtype;
  int64_t size_bytes = 0;
  int64_t root = 0;
  Tail ready;
  int64_t clock = 0;
  int64_t now_ps = 0;
  Value value;
  std::string_view where;
  bool want = false;
  std::optional<std::string_view> op;
  std::optional<double> factor;
  std::optional<std::vector<int64_t>> in_splits;
  std::optional<std::vector<int64_t>> out_splits;

  void write(Packer& p) const {
    p.array(18);
    p.integer(5);
    put(p, node);
    put(p, comm);
    put(p, seq);
    put(p, kind);
    put(p, dtype);
    put(p, size_bytes);
    put(p, root);
    put(p, ready);
    put(p, clock);
    put(p, now_ps);
    put(p, value);
    put(p, where);
    put(p, want);
    put(p, op);
    put(p, factor);
    put(p, in_splits);
    put(p, out_splits);
  }
};

// A communicator, by every member before its first use; ranks are global ones in group order.
struct Comm {
  std::string_view comm;
  std::vector<int64_t> ranks;
  std::string_view backend;
  std::string_view label;

  void write(Packer& p) const {
    p.array(5);
    p.integer(6);
    put(p, comm);
    put(p, ranks);
    put(p, backend);
    put(p, label);
  }
};

// A launch of messages; the node ends with the last of them.
struct P2P {
  int64_t node = 0;
  std::string_view comm;
  Tail ready;
  int64_t clock = 0;
  int64_t now_ps = 0;
  std::vector<Side> sides;
  std::string_view where;

  void write(Packer& p) const {
    p.array(8);
    p.integer(7);
    put(p, node);
    put(p, comm);
    put(p, ready);
    put(p, clock);
    put(p, now_ps);
    put(p, sides);
    put(p, where);
  }
};

// The thread is blocked until the tail has ended; ANSWER is the time at which it goes on.
struct Sync {
  int64_t request = 0;
  int64_t clock = 0;
  Tail tail;
  int64_t now_ps = 0;
  std::string_view why;

  void write(Packer& p) const {
    p.array(6);
    p.integer(8);
    put(p, request);
    put(p, clock);
    put(p, tail);
    put(p, now_ps);
    put(p, why);
  }
};

// Has the tail ended at now_ps? ANSWER is 1 or 0.
struct Query {
  int64_t request = 0;
  int64_t clock = 0;
  Tail tail;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(5);
    p.integer(9);
    put(p, request);
    put(p, clock);
    put(p, tail);
    put(p, now_ps);
  }
};

// A store key is set.
struct Post {
  std::string_view key;
  int64_t clock = 0;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(4);
    p.integer(10);
    put(p, key);
    put(p, clock);
    put(p, now_ps);
  }
};

// The thread waits for store keys; ANSWER is the later of now_ps and the first POST of each.
struct Wait {
  int64_t request = 0;
  int64_t clock = 0;
  std::vector<std::string> keys;
  int64_t now_ps = 0;
  std::string_view why;

  void write(Packer& p) const {
    p.array(6);
    p.integer(11);
    put(p, request);
    put(p, clock);
    put(p, keys);
    put(p, now_ps);
    put(p, why);
  }
};

// A store key is deleted.
struct Forget {
  std::string_view key;

  void write(Packer& p) const {
    p.array(2);
    p.integer(12);
    put(p, key);
  }
};

// A store counter got amount and is result; ANSWER is the latest clock of all adders up to it.
struct Add {
  int64_t request = 0;
  int64_t clock = 0;
  std::string_view key;
  int64_t amount = 0;
  int64_t result = 0;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(7);
    p.integer(13);
    put(p, request);
    put(p, clock);
    put(p, key);
    put(p, amount);
    put(p, result);
    put(p, now_ps);
  }
};

// End of optimizer step index; a rank's steps follow each other without a gap.
struct Step {
  int64_t index = 0;
  Tail tail;
  int64_t clock = 0;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(5);
    p.integer(14);
    put(p, index);
    put(p, tail);
    put(p, clock);
    put(p, now_ps);
  }
};

// The rank has finished; its last record.
struct Bye {

  void write(Packer& p) const {
    p.array(1);
    p.integer(17);
  }
};

// A copy between host and device, which shares PCIe with others.
struct Transfer {
  int64_t node = 0;
  std::string_view direction;
  int64_t size_bytes = 0;
  bool pinned = false;
  Tail ready;
  int64_t clock = 0;
  int64_t now_ps = 0;

  void write(Packer& p) const {
    p.array(8);
    p.integer(18);
    put(p, node);
    put(p, direction);
    put(p, size_bytes);
    put(p, pinned);
    put(p, ready);
    put(p, clock);
    put(p, now_ps);
  }
};

// The value of a COLLECTIVE or of a message (by its place in the launch) whose record said "later".
struct Supply {
  int64_t node = 0;
  int64_t index = 0;
  Value value;

  void write(Packer& p) const {
    p.array(4);
    p.integer(19);
    put(p, node);
    put(p, index);
    put(p, value);
  }
};

// The real wait behind a WAIT is over, so a key that nobody posted came from outside the job.
struct Waited {
  int64_t request = 0;

  void write(Packer& p) const {
    p.array(2);
    p.integer(20);
    put(p, request);
  }
};

// An allocation that failed, as a map. holders: bytes by category of what holds them.
struct OutOfMemory {
  int64_t device = 0;
  int64_t requested_bytes = 0;
  int64_t capacity_bytes = 0;
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t now_ps = 0;
  std::map<std::string, int64_t> holders;

  void write(Packer& p) const {
    p.array(2);
    p.integer(16);
    p.map(8);
    p.string("kind");
    p.string("oom");
    p.string("device");
    put(p, device);
    p.string("requested_bytes");
    put(p, requested_bytes);
    p.string("capacity_bytes");
    put(p, capacity_bytes);
    p.string("allocated_bytes");
    put(p, allocated_bytes);
    p.string("reserved_bytes");
    put(p, reserved_bytes);
    p.string("now_ps");
    put(p, now_ps);
    p.string("holders");
    put(p, holders);
  }
};

// The rank's own account, as a map; steps holds new steps only, all else is the total so far.
enum class AccountField : size_t {
  kSteps,
  kFirstKernelPs,
  kIdealFirstStepPs,
  kIdealPs,
  kKernels,
  kSources,
  kTop,
  kUnpriced,
  kWarnings,
  kPeakAllocatedBytes,
  kPeakReservedBytes,
  kOom,
  kOps,
  kHostLazyBytes,
  kHostWork,
  kHostHeldBytes,
  kMoeRouters,
  kStandIns,
  kUnknownReads,
  kFailedValueExecutions,
};

inline constexpr const char* kAccountFields[] = {
    "steps", "first_kernel_ps", "ideal_first_step_ps", "ideal_ps", "kernels", "sources", "top", "unpriced",
    "warnings", "peak_allocated_bytes", "peak_reserved_bytes", "oom", "ops", "host_lazy_bytes", "host_work",
    "host_held_bytes", "moe_routers", "stand_ins", "unknown_reads", "failed_value_executions"};

// The session is open.
struct Welcome {
  int64_t protocol = 0;
  int64_t world_size = 0;

  static Welcome read(Unpacker& u, size_t fields) {
    if (fields != 2) throw std::runtime_error("the simulator sent WELCOME with " + std::to_string(fields) + " fields");
    Welcome out;
    out.protocol = checked(u.integer(), 0, 9007199254740992LL, "WELCOME.protocol");
    out.world_size = checked(u.integer(), 1, 1048576LL, "WELCOME.world_size");
    return out;
  }
};

// Of SYNC, QUERY, WAIT, ADD: a time, or 0 and 1.
struct Answer {
  int64_t request = 0;
  int64_t value = 0;

  static Answer read(Unpacker& u, size_t fields) {
    if (fields != 2) throw std::runtime_error("the simulator sent ANSWER with " + std::to_string(fields) + " fields");
    Answer out;
    out.request = checked(u.integer(), 0, 9007199254740992LL, "ANSWER.request");
    out.value = checked(u.integer(), 0, 2305843009213693952LL, "ANSWER.value");
    return out;
  }
};

// Nodes whose end is known, each followed by its end.
struct Resolved {
  std::vector<int64_t> ends;

  static Resolved read(Unpacker& u, size_t fields) {
    if (fields != 1) throw std::runtime_error("the simulator sent RESOLVED with " + std::to_string(fields) + " fields");
    Resolved out;
    for (size_t n = u.array(); n > 0; --n) out.ends.push_back(checked(u.integer(), 0, INT64_MAX, "RESOLVED.ends"));
    return out;
  }
};

// The result of a collective or message that asked for it; nil: nobody knows it.
struct ValueOf {
  int64_t node = 0;
  int64_t index = 0;
  std::optional<std::string> value;   // a packed payload

  static ValueOf read(Unpacker& u, size_t fields) {
    if (fields != 3) throw std::runtime_error("the simulator sent VALUE_OF with " + std::to_string(fields) + " fields");
    ValueOf out;
    out.node = checked(u.integer(), 0, 9007199254740992LL, "VALUE_OF.node");
    out.index = checked(u.integer(), 0, 1048575LL, "VALUE_OF.index");
    if (u.isNil()) u.nil();
    else out.value = std::string(u.raw());
    return out;
  }
};

// The simulator has ended the job.
struct Abort {
  std::string kind;
  std::string message;

  static Abort read(Unpacker& u, size_t fields) {
    if (fields != 2) throw std::runtime_error("the simulator sent ABORT with " + std::to_string(fields) + " fields");
    Abort out;
    out.kind = std::string(u.bytes());
    out.message = std::string(u.bytes());
    return out;
  }
};

}  // namespace phantom::wire
