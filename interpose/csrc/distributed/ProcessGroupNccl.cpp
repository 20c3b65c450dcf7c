// Construction, splitting, channels, and how calls become records. The operations are in distributed/ProcessGroupNcclOps.cpp.
#include "distributed/ProcessGroupNccl.h"

#include "time/Accounting.h"
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "core/Device.h"
#include "device/GraphCapture.h"
#include "distributed/ProcessGroupChecks.h"
#include "time/SessionPython.h"
#include "values/Values.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <atomic>
#include <numeric>

namespace phantom {
namespace {

std::atomic<int64_t> g_next_uid{0};

std::vector<int64_t> toSigned(const std::vector<uint64_t>& ranks) { return {ranks.begin(), ranks.end()}; }

bool environmentFlag(const char* name) { return c10d::getCvarBool({name}, false); }

}  // namespace

ProcessGroupNccl::ProcessGroupNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   c10::intrusive_ptr<Options> options, const char* backend)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      name_(options_->group_name),
      given_ranks_(toSigned(options_->global_ranks_in_group)),
      uid_(g_next_uid++) {
  TORCH_CHECK(rank >= 0 && rank < size, "rank ", rank, " is not in a group of size ", size);
  // torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, TORCH_NCCL_BLOCKING_WAIT, TORCH_NCCL_ENABLE_TIMING
  blocking_wait_ = c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}, false);
  timing_ = c10d::getCvarBool({"TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"}, false);
  comm_ = std::make_shared<Comm>(backend, name_, globalRanks(), name_);
  init();
}

// Calls that NCCL fuses into one transfer: the same operation on several buffers of one type.
bool ProcessGroupNccl::Call::fusesWith(const Call& other) const {
  const std::string_view name = kind;
  if (lists || other.lists || name == "all_to_all" || name == "gather" || name == "scatter" || name == "barrier")
    return false;
  if (name != other.kind || root != other.root || sample().scalar_type() != other.sample().scalar_type()) return false;
  if (!reduce) return true;
  return reduce->op_ == other.reduce->op_ && reduce->op_ != c10d::ReduceOp::PREMUL_SUM;
}

std::vector<int64_t> ProcessGroupNccl::globalRanks() const {
  if (!given_ranks_.empty()) return given_ranks_;
  std::vector<int64_t> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Comm& ProcessGroupNccl::comm() { return *comm_; }

StreamId ProcessGroupNccl::newStream(c10::Device device) {
  const bool high = options_->is_high_priority_stream || environmentFlag("TORCH_NCCL_HIGH_PRIORITY");
  used_devices_.insert(device.index());
  return streamFromPool(device.index(), high ? -1 : 0);
}

ProcessGroupNccl::Channel& ProcessGroupNccl::channel(c10::Device device) {
  auto found = channels_.find(device.index());
  if (found == channels_.end()) {
    found = channels_.emplace(device.index(), Channel{comm_, newStream(device), getRank()}).first;
  }
  return found->second;
}

ProcessGroupNccl::Channel& ProcessGroupNccl::pairChannel(c10::Device device, int peer) {
  const auto key = std::make_pair(device.index(), peer);
  auto found = pair_channels_.find(key);
  if (found == pair_channels_.end()) {
    const std::vector<int64_t> all = globalRanks();
    const int low = std::min(getRank(), peer), high = std::max(getRank(), peer);
    std::vector<int64_t> members{all.at(size_t(low))};
    if (low != high) members.push_back(all.at(size_t(high)));
    auto pair = std::make_shared<Comm>(*comm_, "p2p " + std::to_string(low) + ":" + std::to_string(high), members);
    found = pair_channels_.emplace(key, Channel{pair, newStream(device), getRank() <= peer ? 0 : 1}).first;
  }
  return found->second;
}

c10::DeviceIndex ProcessGroupNccl::guessDevice() const {
  if (getBoundDeviceId()) return getBoundDeviceId()->index();
  if (!used_devices_.empty()) return *used_devices_.begin();
  return c10::DeviceIndex(globalRanks().at(size_t(getRank())) % config().device_count);
}

void ProcessGroupNccl::begin(const c10::Device& device) {
  throwIfAborted();
  TORCH_CHECK_WITH(DistBackendError, !aborted_, "the nccl process group ", name_, " was shut down");
  ensureSession();
  chargeHost(HostWork::kCollective);
  used_devices_.insert(device.index());
}

WorkPtr ProcessGroupNccl::collective(Call call, bool async_op) {
  const HookScope scope;
  const c10::Device device = call.sample().device();
  checkNcclType(call.sample().scalar_type());
  if (call.reduce) ncclReduceOp(*call.reduce, call.sample().scalar_type());  // throws what NCCL cannot do
  if (!coalescing_) {
    std::vector<Call> one;
    const auto type = call.type;
    const char* title = call.title;
    one.push_back(std::move(call));
    return collectives(std::move(one), async_op, type, title);
  }
  begin(device);
  Channel& own = channel(device);
  const StreamId stream = async_op ? own.stream : currentStream(device.index());
  if (async_op) orderAfter(device.index(), stream, currentStream(device.index()));
  if (!coalesced_calls_.empty()) {
    TORCH_CHECK(coalesced_calls_.front().sample().device() == device, kMultiDeviceError);
  }
  coalescing_async_ = async_op;
  coalesced_calls_.push_back(std::move(call));
  return nullptr;
}

WorkPtr ProcessGroupNccl::collectives(std::vector<Call> calls, bool async_op, c10d::OpType type, const char* title) {
  const Call& first = calls.front();
  const c10::Device device = first.sample().device();
  begin(device);
  ++sequence_;
  Channel& own = channel(device);
  const StreamId current = currentStream(device.index());
  const StreamId stream = async_op ? own.stream : current;
  if (async_op) orderAfter(device.index(), stream, current);

  auto work = c10::make_intrusive<WorkNccl>(device, getRank(), type, sequence_, title, first.inputs);
  work->blocking_wait_ = blocking_wait_ || config().blocking_launches;
  work->timing_ = timing_;
  for (Call& call : calls) {
    work->outputs_.insert(work->outputs_.end(), call.outputs.begin(), call.outputs.end());
    if (!async_op) continue;  // on the current stream nothing can be reused too early
    for (const Tensors* list : {&call.inputs, &call.outputs, &call.stash}) {
      work->stash_.insert(work->stash_.end(), list->begin(), list->end());
    }
  }

  setCurrentStream(device.index(), stream);
  struct Restore {
    c10::DeviceIndex device;
    StreamId stream;
    ~Restore() { setCurrentStream(device, stream); }
  } restore{device.index(), current};
  for (Call& call : calls) {
    if (call.before) call.before();
  }
  const Tail before = streamTail(device.index(), stream);
  std::vector<bool> posted(calls.size(), false);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (posted[i]) continue;
    std::vector<Call*> group{&calls[i]};
    for (size_t j = i + 1; j < calls.size(); ++j) {
      if (posted[j] || !calls[i].fusesWith(calls[j])) continue;
      posted[j] = true;
      group.push_back(&calls[j]);
    }
    postGroup(group, device, stream);
  }
  for (Call& call : calls) {
    if (call.after) call.after();
  }
  work->launched(stream, before);
  if (!async_op) {
    if (config().blocking_launches) waitFor(streamTail(device.index(), stream), title);  // as Gloo does
    return nullptr;
  }
  return work;
}

void ProcessGroupNccl::postGroup(const std::vector<Call*>& calls, c10::Device device, StreamId stream) {
  const Call& first = *calls.front();
  const std::string_view kind = first.kind;
  const bool is_root = first.root == getRank();
  const int64_t size = getSize();
  Message send, receive;
  int64_t bytes = 0;
  auto addAll = [](Message& message, const Tensors& tensors) {
    for (const at::Tensor& t : tensors) message.add(t);
  };
  // In rank order; within a rank in the order of the calls.
  auto addChunks = [&](Message& message, bool outputs) {
    for (Call* call : calls) {
      for (const at::Tensor& t : outputs ? call->outputs : call->inputs) message.tensors.push_back(t);
    }
    for (int64_t r = 0; r < size; ++r) {
      for (uint32_t i = 0; i < message.tensors.size(); ++i) message.addChunk(i, r, size);
    }
  };
  auto bytesOf = [](const Tensors& tensors) {
    int64_t sum = 0;
    for (const at::Tensor& t : tensors) sum += int64_t(t.nbytes());
    return sum;
  };
  bool contributes = true, receives = true, needs_own = true;
  for (Call* call : calls) {
    const bool larger_output = kind == "all_gather";
    bytes += kind == "gather"    ? bytesOf(call->inputs) * size
             : kind == "scatter" ? bytesOf(call->outputs) * size
                                 : bytesOf(larger_output ? call->outputs : call->inputs);
  }
  if (kind == "all_gather" && !first.lists) {
    for (Call* call : calls) addAll(send, call->inputs);
    addChunks(receive, true);
  } else if (kind == "reduce_scatter") {
    addChunks(send, false);
    for (Call* call : calls) addAll(receive, call->outputs);
  } else {
    contributes = !(kind == "broadcast" || kind == "scatter") || is_root;
    receives = kind == "broadcast" ? !is_root : kind == "reduce" || kind == "gather" ? is_root : kind != "barrier";
    needs_own = contributes;
    if (kind == "barrier") contributes = needs_own = false;
    for (Call* call : calls) {
      if (contributes) addAll(send, call->inputs);
      if (receives) addAll(receive, call->outputs);
    }
  }

  CollectiveRecord record;
  record.kind = first.kind;
  record.dtype = first.sample().scalar_type();
  record.bytes = bytes;
  record.root = first.root;
  record.in_splits = first.in_splits;
  record.out_splits = first.out_splits;
  bool valued = true;
  if (first.reduce) {
    record.op = ncclReduceOp(*first.reduce, record.dtype);
    if (first.reduce->op_ == c10d::ReduceOp::PREMUL_SUM) {
      auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(first.reduce->supplement_.get());
      TORCH_CHECK(supplement != nullptr, "PREMUL_SUM needs torch.distributed._make_nccl_premul_sum");
      std::optional<at::Tensor> factor;
      if (supplement->tensor_factor.defined()) {
        factor = supplement->tensor_factor.is_cuda() ? knownValue(supplement->tensor_factor)
                                                     : std::make_optional(supplement->tensor_factor);
      }
      valued = !supplement->tensor_factor.defined() || factor;  // a factor nobody knows makes the sum unknown
      record.has_factor = valued;
      if (valued) record.factor = factor ? factor->item<double>() : supplement->double_factor;
    }
  }

  if (streamCapturing(device.index(), stream)) {
    // A replay has no values: nobody knows what the kernels before it would have written.
    if (receives) forgetValues(receive);
    const auto replay = [comm = comm_, record, device, title = std::string(first.title)](StreamId on) {
      CollectiveRecord again = record;
      again.node = newNode();
      again.ready = occupyStream(device.index(), on, again.node, title);
      comm->post(again);
    };
    if (captureCall(device.index(), stream, replay)) return;
  }
  const NodePtr node = newNode();
  record.node = node;
  record.ready = occupyStream(device.index(), stream, node, first.title);
  const Offer offer = contributes && valued ? offerValue(send, record.payload) : Offer::kNone;
  record.value_later = offer == Offer::kLater;
  record.want = receives && (needs_own ? offer != Offer::kNone : smallEnough(receive));
  std::optional<Receiver> receiver;
  if (record.want) receiver.emplace(node, 0);
  comm().post(record);
  if (offer == Offer::kLater) supplyLater(node, 0, send);
  if (receiver) receiver->bind(receive);
  else if (receives) forgetValues(receive);
}

WorkPtr ProcessGroupNccl::pointToPoint(Transfer transfer) {
  const HookScope scope;
  const c10::Device device = transfer.tensor.device();
  TORCH_CHECK(transfer.peer >= 0 && transfer.peer < getSize(), "Invalid rank ", transfer.peer, " for a group of ",
              getSize());
  checkNcclType(transfer.tensor.scalar_type());
  if (coalescing_) {
    begin(device);
    if (!coalesced_transfers_.empty()) {
      TORCH_CHECK(coalesced_transfers_.front().tensor.device() == device, kMultiDeviceError);
    }
    const StreamId stream = channel(device).stream;
    orderAfter(device.index(), stream, currentStream(device.index()));
    coalescing_async_ = true;
    coalesced_transfers_.push_back(std::move(transfer));
    return nullptr;
  }
  begin(device);
  Channel& own = eager_ ? channel(device) : pairChannel(device, transfer.peer);
  if (!eager_) transfer.peer = own.comm->globalRanks().size() == 1 ? 0 : 1 - own.own_rank;
  orderAfter(device.index(), own.stream, currentStream(device.index()));
  const auto type = transfer.is_send ? c10d::OpType::SEND : c10d::OpType::RECV;
  return launchTransfers(own, device, {transfer}, type, transfer.is_send ? "nccl:send" : "nccl:recv");
}

WorkPtr ProcessGroupNccl::launchTransfers(Channel& own, c10::Device device, const std::vector<Transfer>& transfers,
                                          c10d::OpType type, const char* title) {
  ++p2p_sequence_;
  const bool capturing = streamCapturing(device.index(), own.stream);
  NodePtr node = capturing ? nullptr : newNode();
  const Tail ready = capturing ? Tail() : occupyStream(device.index(), own.stream, node, title);
  std::vector<TransferRecord> records(transfers.size());
  std::vector<std::optional<Receiver>> receivers(transfers.size());
  std::vector<Message> messages(transfers.size());
  for (size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    TransferRecord& r = records[i];
    messages[i].add(t.tensor);
    r.peer = t.peer;
    r.is_send = t.is_send;
    r.bytes = int64_t(t.tensor.nbytes());
    r.dtype = t.tensor.scalar_type();
    if (capturing) continue;  // a replay has no values
    if (t.is_send) r.value_later = offerValue(messages[i], r.payload) == Offer::kLater;
    else r.want = smallEnough(messages[i]);
    if (r.want) receivers[i].emplace(node, uint32_t(i));
  }
  for (const Transfer& t : transfers) {
    // A send need not be waited for, so the storage itself must know of the stream.
    recordStream(t.tensor.storage().data_ptr(), device.index(), own.stream);
  }
  if (capturing) {
    captureCall(device.index(), own.stream, [own, device, records, title = std::string(title)](StreamId on) {
      NodePtr again = newNode();
      const Tail start = occupyStream(device.index(), on, again, title);
      own.comm->post(again, start, own.own_rank, records);
    });
  } else {
    own.comm->post(node, ready, own.own_rank, records);
  }
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (records[i].value_later) supplyLater(node, uint32_t(i), messages[i]);
  }
  auto work = c10::make_intrusive<WorkNccl>(device, getRank(), type, p2p_sequence_, title, Tensors{});
  work->blocking_wait_ = blocking_wait_ || config().blocking_launches;
  work->timing_ = timing_;
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (receivers[i]) receivers[i]->bind(messages[i]);
    else if (!transfers[i].is_send) forgetValues(messages[i]);
    if (transfers.size() == 1) work->outputs_.push_back(transfers[i].tensor);
    work->stash_.push_back(transfers[i].tensor);
  }
  work->launched(own.stream, ready);
  return work;
}

void ProcessGroupNccl::startCoalescing() {
  coalescing_ = true;
  coalescing_async_ = false;
  coalesced_calls_.clear();
  coalesced_transfers_.clear();
}

WorkPtr ProcessGroupNccl::endCoalescing() {
  const HookScope scope;
  coalescing_ = false;
  std::vector<Call> calls;
  std::vector<Transfer> transfers;
  calls.swap(coalesced_calls_);
  transfers.swap(coalesced_transfers_);
  WorkPtr work;
  if (!transfers.empty()) {
    const c10::Device device = transfers.front().tensor.device();
    work = launchTransfers(channel(device), device, transfers, c10d::OpType::COALESCED, "nccl:coalesced");
  }
  if (!calls.empty())
    work = collectives(std::move(calls), coalescing_async_, c10d::OpType::COALESCED, "nccl:coalesced");
  return work;
}

void ProcessGroupNccl::eagerConnectSingleDevice(at::Device device) {
  if (!eager_ && options_->split_from && options_->split_color >= 0) options_->split_from->performNocolorSplit(device);
  eager_ = true;
  channel(device);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNccl::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                          const std::vector<int>& ranks,
                                                          const c10::intrusive_ptr<Backend::Options>& opts) {
  const c10::Device device(c10::kCUDA, guessDevice());
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  const int number = split_calls_++;  // all members of this group split it in the same order
  if (found == ranks.end()) {
    performNocolorSplit(device);
    return nullptr;
  }
  auto given = c10::dynamic_intrusive_pointer_cast<Options>(opts);
  TORCH_CHECK(given != nullptr, "opts not a ProcessGroupNCCL::Options.");
  const std::vector<int64_t> all = globalRanks();
  std::vector<uint64_t> members;
  for (int rank : ranks) members.push_back(uint64_t(all.at(size_t(rank))));
  given->split_from = c10::intrusive_ptr<ProcessGroupNccl>::unsafe_reclaim_from_nonowning(this);
  given->global_ranks_in_group = members;
  given->split_color = int(std::hash<std::string>{}(c10::str(ranks)) & 0x7fffffff);
  auto group = c10::make_intrusive<ProcessGroupNccl>(store, int(found - ranks.begin()), int(ranks.size()), given);
  // The name torch gives the child may differ between its members (it hashes how many groups the process has).
  group->comm_ = std::make_shared<Comm>(comm(), splitSuffix(number, ranks), group->globalRanks());
  group->eagerConnectSingleDevice(device);
  return group;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupNccl::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                          const c10::intrusive_ptr<Backend::Options>& opts,
                                                          const int& rank, const int& size) {
  auto given = c10::dynamic_intrusive_pointer_cast<Options>(opts);
  TORCH_CHECK(given != nullptr, "opts not a ProcessGroupNCCL::Options.");
  return c10::make_intrusive<ProcessGroupNccl>(store, rank, size, given);
}

c10d::ErrorType ProcessGroupNccl::getError() {
  return abortText() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

at::Tensor ProcessGroupNccl::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.has_device(), "Tensor options must include device");
  TORCH_CHECK_VALUE(options.device().is_cuda(),
                    "NCCL tensor allocator expects cuda type but got " + c10::str(options.device()));
  return at::empty({size}, options);
}

void ProcessGroupNccl::noteMemPool() {
  addWarning(
      "ProcessGroupNCCL.register_mem_pool has no effect on simulated times: user-buffer registration is not modelled");
}

}  // namespace phantom
