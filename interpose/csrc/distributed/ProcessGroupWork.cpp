#include "distributed/ProcessGroupWork.h"

#include "time/Clock.h"
#include "core/Device.h"
#include "device/GraphCapture.h"
#include "time/Session.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace phantom {

WorkNccl::WorkNccl(c10::Device device, int rank, c10d::OpType type, uint64_t sequence, const char* title,
                   const std::vector<at::Tensor>& inputs)
    : Work(rank, type, title, inputs.empty() ? std::nullopt : std::make_optional(inputs)),
      device_(device),
      sequence_(sequence) {}

void WorkNccl::launched(StreamId stream, const Tail& ready) {
  ready_ = ready;
  end_ = streamTail(device_.index(), stream);
  captured_ = captureEvent(device_.index(), stream);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device_});
  if (recordFunctionEndCallback_) {
    future_->addCallback([end = recordFunctionEndCallback_](c10::ivalue::Future&) { end(); }, /*uses_future=*/false);
  }
  // markCompleted records an event on the current stream of each of the future's devices.
  const StreamId before = currentStream(device_.index());
  setCurrentStream(device_.index(), stream);
  future_->markCompleted(c10::IValue(outputs_));
  setCurrentStream(device_.index(), before);
}

bool WorkNccl::isCompleted() {
  throwIfAborted();
  return query(end_);
}

void WorkNccl::synchronize() {
  const HookScope scope;
  throwIfAborted();
  chargeHost(HostWork::kQuery);  // one cudaStreamWaitEvent
  const StreamId current = currentStream(device_.index());
  if (!captureWait(device_.index(), current, captured_)) streamWait(device_.index(), current, end_);
  stash_.clear();
  if (c10d::allow_inflight_collective_as_graph_input()) {
    c10d::unregister_work(c10::intrusive_ptr<Work>::unsafe_reclaim_from_nonowning(this));
  }
}

bool WorkNccl::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (blocking_wait_ || timeout != kNoTimeout) {
    phantom::synchronize(end_, "Work.wait");
  } else if (is_barrier_) {
    phantom::synchronize(streamTail(device_.index(), currentStream(device_.index())), "barrier");
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkNccl::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  result->markCompleted(c10::IValue(int64_t(c10d::WorkResult::SUCCESS)));
  return result;
}

float WorkNccl::getDuration() const {
  TORCH_CHECK(timing_, "getDuration only works if timing was enabled");
  Tail ready = ready_, end = end_;
  TORCH_CHECK(ready.known() && end.known(), "getDuration only works once the operation has completed");
  return float(double(end.bound_ps - ready.bound_ps) * 1e-9);
}

}  // namespace phantom
