// The process group that presents itself as `nccl`: every operation is matched and timed by the simulator.
//
// Arguments, checks, streams and tensor lifetimes follow torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (torch 2.9 and
// later): an operation with async_op=False runs on the current stream, others on a stream of the group that first waits for
// the current one; unbatched sends and receives of a lazily connected group have a two-member communicator and stream each.
#pragma once

#include "distributed/CollectiveValues.h"
#include "distributed/ProcessGroupComm.h"
#include "distributed/ProcessGroupWork.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <climits>
#include <map>
#include <memory>
#include <set>

namespace phantom {

using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

constexpr auto kNcclDefaultTimeout = std::chrono::milliseconds(10 * 60 * 1000);

// ncclConfig_t (NCCL's user guide, API types); INT_MIN is NCCL_CONFIG_UNDEF_INT.
struct NcclConfig {
  int blocking = INT_MIN, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN, split_share = INT_MIN,
      traffic_class = INT_MIN, collnet_enable = INT_MIN, cta_policy = INT_MIN, shrink_share = INT_MIN,
      nvls_ctas = INT_MIN, n_channels_per_net_peer = INT_MIN, nvlink_centric_sched = INT_MIN;
  std::string net_name, comm_name;
};

class ProcessGroupNccl : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(bool high_priority = false)
        : Backend::Options("nccl", kNcclDefaultTimeout), is_high_priority_stream(high_priority) {}
    Options(const Options&) = default;
#ifdef C10D_BACKEND_HAS_HOOKS  // torch 2.14
    c10::intrusive_ptr<Backend::Options> clone() const override { return c10::make_intrusive<Options>(*this); }
#endif
    bool is_high_priority_stream;
    NcclConfig config;
    c10::intrusive_ptr<ProcessGroupNccl> split_from;
    int split_color = -2;  // NCCL_SPLIT_NOCOLOR - 1: not set
  };

  // `backend` is what the simulator is told: "nccl", or "gloo" for device tensors in a Gloo group.
  ProcessGroupNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<Options> options,
                   const char* backend = "nccl");

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  c10::intrusive_ptr<Options> options() { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void enableCollectivesTiming() override { timing_ = true; }
  void waitForPendingWorks() override {}
  c10d::ErrorType getError() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Backend::Options>& opts) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Backend::Options>& opts, const int& rank,
                                    const int& size) override;
  void eagerConnectSingleDevice(at::Device device) override;
  void performNocolorSplit(at::Device) { ++splits_; }
  uint64_t commSplitCount() const { return splits_; }
  bool isInitialized() const { return eager_ || !used_devices_.empty(); }
  int64_t uid() const { return uid_; }
  void abort() override { aborted_ = true; }
  void shutdown() override { aborted_ = true; }
  void noteMemPool();

  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
#ifdef C10D_BACKEND_HAS_HOOKS
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override;
#endif
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  // One NCCL call, alone or as part of a group.
  struct Call {
    const char* kind = "";  // as in the record
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = "";
    Tensors inputs, outputs;  // flat buffers
    std::optional<c10d::ReduceOp> reduce;
    int64_t root = -1;
    bool lists = false;                          // tensors of unequal sizes per rank, laid out in rank order
    std::vector<int64_t> in_splits, out_splits;  // elements
    std::function<void()> before, after;         // run under the operation's stream
    Tensors stash;                               // further tensors that the operation uses

    const at::Tensor& sample() const { return (inputs.empty() ? outputs : inputs).front(); }
    bool fusesWith(const Call& other) const;
  };
  struct Transfer {
    at::Tensor tensor;
    int peer;
    bool is_send;
  };
  struct Channel {  // a communicator and its stream
    std::shared_ptr<Comm> comm;
    StreamId stream = 0;
    int own_rank = 0;
  };
  Comm& comm();
  Channel& channel(c10::Device device);
  Channel& pairChannel(c10::Device device, int peer);
  StreamId newStream(c10::Device device);
  std::vector<int64_t> globalRanks() const;
  c10::DeviceIndex guessDevice() const;
  void begin(const c10::Device& device);

  WorkPtr collective(Call call, bool async_op);
  WorkPtr collectives(std::vector<Call> calls, bool async_op, c10d::OpType type, const char* title);
  // Puts one message on the stream, or into the CUDA graph that is being captured.
  void postGroup(const std::vector<Call*>& calls, c10::Device device, StreamId stream);
  WorkPtr pointToPoint(Transfer transfer);
  WorkPtr launchTransfers(Channel& channel, c10::Device device, const std::vector<Transfer>& transfers,
                          c10d::OpType type, const char* title);

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const std::string name_;  // frozen: a split changes the options' name
  const std::vector<int64_t> given_ranks_;
  const int64_t uid_;
  std::shared_ptr<Comm> comm_;
  std::map<c10::DeviceIndex, Channel> channels_;
  std::map<std::pair<c10::DeviceIndex, int>, Channel> pair_channels_;
  std::set<c10::DeviceIndex> used_devices_;
  uint64_t sequence_ = 0, p2p_sequence_ = 0, splits_ = 0;
  int split_calls_ = 0;
  bool eager_ = false, aborted_ = false, timing_ = false, blocking_wait_ = false;

  bool coalescing_ = false, coalescing_async_ = false;
  std::vector<Call> coalesced_calls_;
  std::vector<Transfer> coalesced_transfers_;
};

}  // namespace phantom
