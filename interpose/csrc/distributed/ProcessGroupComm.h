// One communicator as the simulator knows it: an id that all members derive alike, its members, its counters.
#pragma once

#include "time/Session.h"
#include "core/Time.h"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace phantom {

// One COLLECTIVE record (docs/architecture.md).
struct CollectiveRecord {
  NodePtr node;
  const char* kind = "";
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t bytes = 0;  // NCCL's message size
  int64_t root = -1;  // group rank
  Tail ready;
  std::string payload;       // this rank's value; empty: none
  bool value_later = false;  // it follows in a SUPPLY record
  bool want = false;         // the result is to be sent back
  const char* op = nullptr;
  bool has_factor = false;
  double factor = 0;
  std::vector<int64_t> in_splits, out_splits;  // elements
};

// One transfer of a P2P record.
struct TransferRecord {
  int peer = 0;  // rank in the communicator
  bool is_send = false;
  int64_t bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::string payload;
  bool value_later = false;
  bool want = false;
};

class Comm {
 public:
  // `name` is the group's name, equal on all members; groups of the same name and members are told apart by how many
  // were made before, which members agree on because they make groups in the same order.
  Comm(const char* backend, std::string name, std::vector<int64_t> global_ranks, std::string shown_name);
  // A communicator made on demand by some of the members of another one, e.g. the pair behind an unbatched send.
  Comm(const Comm& parent, const std::string& suffix, std::vector<int64_t> global_ranks);

  const std::string& id() const { return id_; }
  const std::vector<int64_t>& globalRanks() const { return global_ranks_; }

  void post(const CollectiveRecord& call);
  void post(const NodePtr& node, const Tail& ready, int own_rank, const std::vector<TransferRecord>& transfers);

 private:
  void announce();

  std::string backend_, id_, shown_name_;
  std::vector<int64_t> global_ranks_;
  std::mutex mutex_;
  bool announced_ = false;
  int64_t sequence_ = 0;
  std::map<std::pair<int, int>, int64_t> transfers_;  // (source, destination) -> next sequence number
};

// Suffix of a communicator that the `number`-th split of another one made for these of its members.
std::string splitSuffix(int number, const std::vector<int>& parent_ranks);

// The value of an earlier record that said "later"; an empty payload means that there is none.
void recordSupply(const NodePtr& node, uint32_t index, const std::string& payload);

}  // namespace phantom
