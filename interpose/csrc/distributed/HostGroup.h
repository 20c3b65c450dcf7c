// A Gloo process group whose operations really run and are also matched by the simulator, so that what one rank learns
// from another through the CPU cannot be earlier, in virtual time, than the other said it.
#pragma once

#include "distributed/ProcessGroupNccl.h"

namespace phantom {

// Wraps the handle of a real operation. Waiting is announced to the simulator first (the rank's clock no longer holds the
// horizon), then the real operation is waited for, then the answer moves the clock.
class GlooWork : public c10d::Work {
 public:
  GlooWork(WorkPtr inner, NodePtr node, const char* what);

  bool isCompleted() override;
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override { inner_->abort(); }
  // Callbacks run on Gloo's threads, which have no clock: so the operation is waited for first.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  void waitReally(std::chrono::milliseconds timeout);

  const WorkPtr inner_;
  const NodePtr node_;
  const std::string what_;
  bool settled_ = false;
};

class HostGroup : public c10d::Backend {
 public:
  explicit HostGroup(c10::intrusive_ptr<Backend> inner);
  c10::intrusive_ptr<Backend> inner() const { return inner_; }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void setGroupUid(const std::string& uid) override;
  c10d::ErrorType getError() override { return inner_->getError(); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Backend::Options>& opts) override;
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Backend::Options>& opts, const int& rank,
                                    const int& size) override;

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
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

 private:
  WorkPtr post(const char* kind, const at::Tensor& sample, int64_t bytes, int64_t root, const WorkPtr& inner);
  WorkPtr postTransfer(const at::Tensor& tensor, int peer, int tag, bool is_send, const WorkPtr& inner);
  Comm& comm();
  std::vector<int64_t> globalRanks();
  // Device tensors in a Gloo group: timed as host collectives on the device's data, the caller waits.
  ProcessGroupNccl& deviceGroup();
  WorkPtr settled(const WorkPtr& work);

  const c10::intrusive_ptr<Backend> inner_;
  std::shared_ptr<Comm> comm_;
  int split_calls_ = 0;
  std::map<int, std::shared_ptr<Comm>> tag_comms_;
  c10::intrusive_ptr<ProcessGroupNccl> device_group_;
};

// Members of a new Gloo group meet in its constructor, outside of any operation. Returns a request for meetEnd, 0 without
// a session.
uint64_t meetBegin(const std::string& name, const std::vector<int64_t>& global_ranks);
void meetEnd(uint64_t request);

}  // namespace phantom
