#include "distributed/HostGroup.h"

#include "time/Accounting.h"
#include "time/Clock.h"
#include "core/Device.h"

#include "core/Records.h"
#include <numeric>

namespace phantom {
namespace {

int64_t bytesOf(const Tensors& tensors) {
  int64_t sum = 0;
  for (const at::Tensor& t : tensors) sum += int64_t(t.nbytes());
  return sum;
}

bool onDevice(const Tensors& tensors) { return !tensors.empty() && tensors.front().is_cuda(); }

uint64_t announceWait(const NodePtr& node, const std::string& what) {
  Clock& clock = thisThreadClock();
  const uint64_t request = newRequest();
  const std::string where = pythonLocation();
  const std::string why = where.empty() ? what : what + " at " + where;
  clock.waiting = true;
  record([&](Packer& p) {
    wire::Sync{
        .request = int64_t(request), .clock = clock.id, .tail = Tail(node), .now_ps = clock.now_ps.load(), .why = why}
        .write(p);
  });
  flush();
  return request;
}

CollectiveRecord barrierRecord(const NodePtr& node) {
  CollectiveRecord record;
  record.node = node;
  record.kind = "barrier";
  record.bytes = 4;
  record.ready = Tail(thisThreadClock().now_ps.load());
  return record;
}

}  // namespace

GlooWork::GlooWork(WorkPtr inner, NodePtr node, const char* what)
    : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), node_(std::move(node)), what_(what) {}

bool GlooWork::isCompleted() {
  if (settled_) return true;
  throwIfAborted();
  if (!query(Tail(node_))) return false;
  wait(kNoTimeout);
  return true;
}

void GlooWork::waitReally(std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = inner_->getFuture();
  } catch (const c10::Error&) {  // sends, receives and reduce_scatter have none
  }
  if (future) {
    // Keeps Ctrl-C and the simulator's abort working while the other ranks have not come yet.
    future->addCallback([](c10::ivalue::Future&) { notifySession(); }, /*uses_future=*/false);
    awaitCondition([&] { return inner_->isCompleted(); });
  }
  inner_->wait(timeout);  // throws what the operation threw
}

bool GlooWork::wait(std::chrono::milliseconds timeout) {
  if (settled_) return true;
  throwIfAborted();
  chargeHost(HostWork::kSync);  // whether the end is known by now depends on real time: both ways cost the same
  Tail end(node_);
  if (end.known()) {  // all members have come
    inner_->wait(timeout);
    thisThreadClock().notBefore(end.bound_ps);
  } else {
    Clock& clock = thisThreadClock();
    const uint64_t request = announceWait(node_, what_);
    try {
      waitReally(timeout);
    } catch (...) {
      clock.waiting = false;
      throw;
    }
    clock.notBefore(awaitAnswer(request));
  }
  settled_ = true;
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GlooWork::getFuture() {
  wait(kNoTimeout);
  return inner_->getFuture();
}

HostGroup::HostGroup(c10::intrusive_ptr<Backend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {
  comm();  // the id counts the groups made so far, so it is taken at the same point on all members
}

void HostGroup::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  inner_->setGroupUid(uid);
}

std::vector<int64_t> HostGroup::globalRanks() {
  const auto options = inner_->getBackendOptions();
  std::vector<int64_t> ranks(options->global_ranks_in_group.begin(), options->global_ranks_in_group.end());
  if (ranks.empty()) {
    ranks.resize(size_t(getSize()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

Comm& HostGroup::comm() {
  if (!comm_) {
    const std::string name = inner_->getBackendOptions()->group_name;
    comm_ = std::make_shared<Comm>("gloo", name, globalRanks(), name);
  }
  return *comm_;
}

ProcessGroupNccl& HostGroup::deviceGroup() {
  if (!device_group_) {
    auto options = c10::make_intrusive<ProcessGroupNccl::Options>();
    options->group_name = inner_->getBackendOptions()->group_name + " (device tensors)";
    for (int64_t rank : globalRanks()) options->global_ranks_in_group.push_back(uint64_t(rank));
    device_group_ = c10::make_intrusive<ProcessGroupNccl>(nullptr, getRank(), getSize(), options, "gloo");
    addWarning("device tensors in a Gloo group: the copies to the host and back are not priced");
  }
  return *device_group_;
}

WorkPtr HostGroup::settled(const WorkPtr& work) {
  if (work) {
    work->wait();
    const c10::DeviceIndex device = currentDevice();
    phantom::synchronize(streamTail(device, currentStream(device)), "a Gloo operation on device tensors");
  }
  return work;
}

WorkPtr HostGroup::post(const char* kind, const at::Tensor& sample, int64_t bytes, int64_t root, const WorkPtr& inner) {
  if (!sessionOpen() || !inner) return inner;
  throwIfAborted();
  chargeHost(HostWork::kCollective);
  CollectiveRecord record;
  record.node = newNode();
  record.kind = kind;
  record.dtype = sample.defined() ? sample.scalar_type() : at::kFloat;
  record.bytes = bytes;
  record.root = root;
  record.ready = Tail(thisThreadClock().now_ps.load());
  comm().post(record);
  flush();
  return c10::make_intrusive<GlooWork>(inner, record.node, (std::string("gloo ") + kind).c_str());
}

WorkPtr HostGroup::postTransfer(const at::Tensor& tensor, int peer, int tag, bool is_send, const WorkPtr& inner) {
  if (!sessionOpen() || !inner) return inner;
  throwIfAborted();
  chargeHost(HostWork::kCollective);
  Comm* own = &comm();
  if (tag != 0) {  // Gloo matches by tag
    auto& tagged = tag_comms_[tag];
    if (!tagged) tagged = std::make_shared<Comm>(comm(), "tag " + std::to_string(tag), globalRanks());
    own = tagged.get();
  }
  NodePtr node = newNode();
  TransferRecord transfer;
  transfer.peer = peer;
  transfer.is_send = is_send;
  transfer.bytes = int64_t(tensor.nbytes());
  transfer.dtype = tensor.scalar_type();
  own->post(node, Tail(thisThreadClock().now_ps.load()), getRank(), {transfer});
  flush();
  return c10::make_intrusive<GlooWork>(inner, node, is_send ? "gloo send" : "gloo recv");
}

WorkPtr HostGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  if (onDevice(tensors)) return settled(deviceGroup().broadcast(tensors, opts));
  return post("broadcast", tensors.front(), bytesOf(tensors), opts.rootRank, inner_->broadcast(tensors, opts));
}

WorkPtr HostGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (onDevice(tensors)) return settled(deviceGroup().allreduce(tensors, opts));
  return post("all_reduce", tensors.front(), bytesOf(tensors), -1, inner_->allreduce(tensors, opts));
}

WorkPtr HostGroup::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return post("all_reduce", tensors.front(), 0, -1, inner_->allreduce_sparse(tensors, opts));
}

WorkPtr HostGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  if (onDevice(tensors)) return settled(deviceGroup().allreduce_coalesced(tensors, opts));
  return post("all_reduce", tensors.front(), bytesOf(tensors), -1, inner_->allreduce_coalesced(tensors, opts));
}

WorkPtr HostGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  if (onDevice(tensors)) return settled(deviceGroup().reduce(tensors, opts));
  return post("reduce", tensors.front(), bytesOf(tensors), opts.rootRank, inner_->reduce(tensors, opts));
}

WorkPtr HostGroup::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  if (onDevice(inputs)) return settled(deviceGroup().allgather(outputs, inputs, opts));
  return post("all_gather", inputs.front(), bytesOf(inputs) * getSize(), -1, inner_->allgather(outputs, inputs, opts));
}

WorkPtr HostGroup::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  if (input.is_cuda()) return settled(deviceGroup()._allgather_base(output, input, opts));
  return post("all_gather", input, int64_t(output.nbytes()), -1, inner_->_allgather_base(output, input, opts));
}

WorkPtr HostGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return post("all_gather", inputs.front(), bytesOf(inputs) * getSize(), -1,
              inner_->allgather_coalesced(outputs, inputs, opts));
}

WorkPtr HostGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllgatherOptions& opts) {
  if (onDevice(inputs)) return settled(deviceGroup().allgather_into_tensor_coalesced(outputs, inputs, opts));
  return post("all_gather", inputs.front(), bytesOf(outputs), -1,
              inner_->allgather_into_tensor_coalesced(outputs, inputs, opts));
}

WorkPtr HostGroup::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  if (onDevice(inputs)) return settled(deviceGroup().gather(outputs, inputs, opts));
  return post("gather", inputs.front(), bytesOf(inputs) * getSize(), opts.rootRank,
              inner_->gather(outputs, inputs, opts));
}

WorkPtr HostGroup::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  if (onDevice(outputs)) return settled(deviceGroup().scatter(outputs, inputs, opts));
  return post("scatter", outputs.front(), bytesOf(outputs) * getSize(), opts.rootRank,
              inner_->scatter(outputs, inputs, opts));
}

WorkPtr HostGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  if (onDevice(outputs)) return settled(deviceGroup().reduce_scatter(outputs, inputs, opts));
  return post("reduce_scatter", outputs.front(), bytesOf(inputs.front()), -1,
              inner_->reduce_scatter(outputs, inputs, opts));
}

WorkPtr HostGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  if (input.is_cuda()) return settled(deviceGroup()._reduce_scatter_base(output, input, opts));
  return post("reduce_scatter", input, int64_t(input.nbytes()), -1, inner_->_reduce_scatter_base(output, input, opts));
}

WorkPtr HostGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                   const c10d::ReduceScatterOptions& opts) {
  if (onDevice(inputs)) return settled(deviceGroup().reduce_scatter_tensor_coalesced(outputs, inputs, opts));
  return post("reduce_scatter", inputs.front(), bytesOf(inputs), -1,
              inner_->reduce_scatter_tensor_coalesced(outputs, inputs, opts));
}

WorkPtr HostGroup::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                 std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  if (input.is_cuda()) return settled(deviceGroup().alltoall_base(output, input, output_splits, input_splits, opts));
  return post("all_to_all", input, int64_t(input.nbytes()), -1,
              inner_->alltoall_base(output, input, output_splits, input_splits, opts));
}

WorkPtr HostGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  if (onDevice(inputs)) return settled(deviceGroup().alltoall(outputs, inputs, opts));
  return post("all_to_all", inputs.front(), bytesOf(inputs), -1, inner_->alltoall(outputs, inputs, opts));
}

WorkPtr HostGroup::send(Tensors& tensors, int peer, int tag) {
  if (onDevice(tensors)) return settled(deviceGroup().send(tensors, peer, tag));
  return postTransfer(tensors.front(), peer, tag, true, inner_->send(tensors, peer, tag));
}

WorkPtr HostGroup::recv(Tensors& tensors, int peer, int tag) {
  if (onDevice(tensors)) return settled(deviceGroup().recv(tensors, peer, tag));
  return postTransfer(tensors.front(), peer, tag, false, inner_->recv(tensors, peer, tag));
}

WorkPtr HostGroup::recvAnysource(Tensors& tensors, int tag) {
  // Whom it pairs with is known only afterwards; until then this rank's clock holds the horizon.
  WorkPtr inner = inner_->recvAnysource(tensors, tag);
  if (!sessionOpen()) return inner;
  inner->wait();
  return postTransfer(tensors.front(), inner->sourceRank(), tag, false, inner);
}

WorkPtr HostGroup::barrier(const c10d::BarrierOptions& opts) {
  return post("barrier", at::Tensor(), 4, -1, inner_->barrier(opts));
}

void HostGroup::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  if (!sessionOpen()) return inner_->monitoredBarrier(opts, wait_all_ranks);
  throwIfAborted();
  chargeHost(HostWork::kCollective);
  NodePtr node = newNode();
  comm().post(barrierRecord(node));
  chargeHost(HostWork::kSync);
  Clock& clock = thisThreadClock();
  const uint64_t request = announceWait(node, "gloo monitored_barrier");
  try {
    inner_->monitoredBarrier(opts, wait_all_ranks);
  } catch (...) {
    clock.waiting = false;
    throw;
  }
  clock.notBefore(awaitAnswer(request));
}

c10::intrusive_ptr<c10d::Backend> HostGroup::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<Backend::Options>& opts) {
  const std::vector<int64_t> all = globalRanks();
  const std::string suffix = splitSuffix(split_calls_++, ranks);
  std::vector<int64_t> members;
  bool is_member = false;
  for (int rank : ranks) {
    members.push_back(all.at(size_t(rank)));
    is_member = is_member || rank == getRank();
  }
  const uint64_t request = is_member ? meetBegin(comm().id() + " " + suffix, members) : 0;
  c10::intrusive_ptr<Backend> made;
  try {
    made = inner_->split(store, ranks, opts);
  } catch (...) {
    if (request != 0) thisThreadClock().waiting = false;
    throw;
  }
  meetEnd(request);
  if (!made) return made;
  auto group = c10::make_intrusive<HostGroup>(made);
  group->comm_ = std::make_shared<Comm>(comm(), suffix, members);
  return group;
}

c10::intrusive_ptr<c10d::Backend> HostGroup::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const c10::intrusive_ptr<Backend::Options>& opts, const int& rank,
                                                   const int& size) {
  return c10::make_intrusive<HostGroup>(inner_->merge(store, opts, rank, size));
}

uint64_t meetBegin(const std::string& name, const std::vector<int64_t>& global_ranks) {
  if (!sessionOpen() || global_ranks.size() < 2) return 0;
  throwIfAborted();
  NodePtr node = newNode();
  Comm meeting("gloo", "connect " + name, global_ranks, "connecting group " + name);
  meeting.post(barrierRecord(node));
  chargeHost(HostWork::kSync);
  return announceWait(node, "connecting Gloo group " + name);
}

void meetEnd(uint64_t request) {
  if (request != 0) thisThreadClock().notBefore(awaitAnswer(request));
}

}  // namespace phantom
