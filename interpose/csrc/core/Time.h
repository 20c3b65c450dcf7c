// Points in virtual time, some of which the simulator has still to fix.
//
// A collective's end is known only after every member has posted it, so the end of a chain of kernels is kept as
// max(end(node) + offset, bound): the latest unresolved node, the work since, and a known lower bound.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace phantom {

using Picoseconds = int64_t;
constexpr Picoseconds kUnresolved = -1;

// One end that the simulator computes. `end_ps` goes from kUnresolved to its value once and never changes again.
struct Node final : c10::intrusive_ptr_target {
  explicit Node(uint64_t node_id) : id(node_id) {}
  const uint64_t id;
  std::atomic<Picoseconds> end_ps{kUnresolved};
};
using NodePtr = c10::intrusive_ptr<Node>;

struct Tail {
  NodePtr node;               // null: the tail is just `bound_ps`
  Picoseconds offset_ps = 0;  // work after the node's end
  Picoseconds bound_ps = 0;

  Tail() = default;
  explicit Tail(Picoseconds known_ps) : bound_ps(known_ps) {}
  explicit Tail(NodePtr n) : node(std::move(n)) {}

  // Folds a node that has been resolved meanwhile into the bound.
  void simplify() {
    if (node) {
      const Picoseconds end = node->end_ps.load(std::memory_order_acquire);
      if (end != kUnresolved) {
        bound_ps = std::max(bound_ps, end + offset_ps);
        node.reset();
        offset_ps = 0;
      }
    }
  }
  bool known() {
    simplify();
    return !node;
  }
  void notBefore(Picoseconds time_ps) { bound_ps = std::max(bound_ps, time_ps); }
  void add(Picoseconds duration_ps) {
    offset_ps += duration_ps;  // meaningless without a node, and reset when one is set
    bound_ps += duration_ps;
    if (!node) offset_ps = 0;
  }
};

}  // namespace phantom
