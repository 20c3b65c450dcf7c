// The handle of a virtual NCCL operation: an end in virtual time that streams, the host or callbacks wait for.
#pragma once

#include "time/Timeline.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace phantom {

class WorkNccl : public c10d::Work {
 public:
  WorkNccl(c10::Device device, int rank, c10d::OpType type, uint64_t sequence, const char* title,
           const std::vector<at::Tensor>& inputs);

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;  // the current stream waits; the host does not
  void blockCurrentStream() override { synchronize(); }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;  // ms; needs collective timing
  uint64_t getSequencenumber() const override { return sequence_; }
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  friend class ProcessGroupNccl;
  // The operation has been launched on `stream`: fixes its end and completes the future there.
  void launched(StreamId stream, const Tail& ready);

  const c10::Device device_;
  const uint64_t sequence_;
  Tail ready_, end_;
  uint64_t captured_ = 0;  // stands for the end inside a CUDA graph under capture
  std::vector<at::Tensor> outputs_;
  // Tensors that the communication stream reads or writes, kept until the waiting stream is ordered after it
  // (ProcessGroupNCCL's stashed_for_allocator_safety_).
  std::vector<at::Tensor> stash_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool blocking_wait_ = false, is_barrier_ = false, timing_ = false;
};

}  // namespace phantom
