#include "distributed/CollectiveValues.h"

#include "core/Config.h"
#include "distributed/ProcessGroupComm.h"
#include "time/Session.h"
#include "values/Values.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>
#include <map>
#include <mutex>

namespace phantom {
namespace {

constexpr int64_t kMaxPayloadBytes = int64_t(16) << 20;  // the simulator combines no more
constexpr int64_t kMaxAskedFloatBytes = 1024;

// The message as one flat CPU tensor; undefined if its parts do not fit together or it is too large.
at::Tensor joinPieces(const Message& message, const std::vector<at::Tensor>& values) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  TORCH_INTERNAL_ASSERT(values.size() == message.tensors.size());
  if (values.size() == 1 && message.pieces.size() == 1 && message.pieces[0].numel == values[0].numel())
    return values[0];
  const at::ScalarType dtype = values[0].scalar_type();
  const size_t item = values[0].element_size();
  bool uniform = true;
  const void* first = nullptr;
  for (const at::Tensor& v : values) {
    if (v.scalar_type() != dtype) return {};
    if (v.numel() == 0) continue;
    uniform = uniform && isUniform(v) && (first == nullptr || std::memcmp(first, v.const_data_ptr(), item) == 0);
    if (first == nullptr) first = v.const_data_ptr();
  }
  const int64_t numel = message.numel();
  if (uniform && first != nullptr) {
    at::Tensor scalar = at::empty({1}, values[0].options());
    std::memcpy(scalar.mutable_data_ptr(), first, item);
    return scalar.expand({numel});
  }
  if (numel * int64_t(item) > kMaxPayloadBytes) return {};
  std::vector<at::Tensor> dense;
  for (const at::Tensor& v : values) dense.push_back(v.contiguous());
  at::Tensor joined = at::empty({numel}, values[0].options());
  char* to = static_cast<char*>(joined.mutable_data_ptr());
  for (const Piece& piece : message.pieces) {
    const char* from = static_cast<const char*>(dense[piece.tensor].const_data_ptr());
    std::memcpy(to, from + size_t(piece.offset) * item, size_t(piece.numel) * item);
    to += size_t(piece.numel) * item;
  }
  return joined;
}

std::string packMessage(const Message& message, const std::vector<at::Tensor>& values) {
  const at::Tensor joined = joinPieces(message, values);
  if (!joined.defined()) return {};
  if (!isUniform(joined) && int64_t(joined.nbytes()) > kMaxPayloadBytes) return {};
  return packValue(joined);
}

// The tensor's part of a flat result, or nothing.
std::optional<at::Tensor> takeTensor(const at::Tensor& flat, at::IntArrayRef sizes, at::ScalarType dtype,
                                     const std::vector<std::pair<int64_t, Piece>>& parts) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (flat.scalar_type() != dtype) return std::nullopt;
  if (isUniform(flat)) return flat.narrow(0, 0, 1).expand({1}).reshape({}).expand(sizes);
  const size_t item = flat.element_size();
  const at::Tensor dense = flat.contiguous();
  at::Tensor out = at::empty(sizes, flat.options());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const char* from = static_cast<const char*>(dense.const_data_ptr());
  for (const auto& [at_element, piece] : parts) {
    std::memcpy(to + size_t(piece.offset) * item, from + size_t(at_element) * item, size_t(piece.numel) * item);
  }
  return out;
}

}  // namespace

void Message::add(const at::Tensor& tensor) {
  pieces.push_back({uint32_t(tensors.size()), 0, tensor.numel()});
  tensors.push_back(tensor);
}

void Message::addChunk(uint32_t tensor, int64_t chunk, int64_t chunks) {
  const int64_t numel = tensors[tensor].numel() / chunks;
  pieces.push_back({tensor, chunk * numel, numel});
}

int64_t Message::numel() const {
  int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.numel;
  return sum;
}

Offer offerValue(const Message& message, std::string& payload) {
  payload.clear();
  if (!config().values || message.tensors.empty()) return Offer::kNone;
  bool pending = false;
  for (const at::Tensor& t : message.tensors) {
    if (!hasValue(t)) return Offer::kNone;
    pending = pending || valuePending(t);
  }
  if (pending) return Offer::kLater;
  std::vector<at::Tensor> values;
  for (const at::Tensor& t : message.tensors) {
    auto value = knownValue(t);
    // Fulfilled between the two questions: ask again when the callback comes.
    if (!value) return hasValue(t) ? Offer::kLater : Offer::kNone;
    values.push_back(*value);
  }
  payload = packMessage(message, values);
  return payload.empty() ? Offer::kNone : Offer::kNow;
}

void supplyLater(const NodePtr& node, uint32_t index, const Message& message) {
  struct Gathering {
    std::mutex mutex;
    NodePtr node;
    uint32_t index;
    Message message;  // its tensors only lend their number
    std::vector<std::optional<at::Tensor>> values;
    size_t missing;
    bool unknown = false;
  };
  auto gathering = std::make_shared<Gathering>();
  gathering->node = node;
  gathering->index = index;
  gathering->message.pieces = message.pieces;
  gathering->message.tensors.resize(message.tensors.size());
  gathering->values.resize(message.tensors.size());
  gathering->missing = message.tensors.size();
  for (size_t i = 0; i < message.tensors.size(); ++i) {
    whenKnown(message.tensors[i], [gathering, i](std::optional<at::Tensor> value) {
      {
        std::lock_guard<std::mutex> hold(gathering->mutex);
        if (value) gathering->values[i] = std::move(value);
        else gathering->unknown = true;
        if (--gathering->missing != 0) return;
      }
      std::string payload;
      if (!gathering->unknown) {
        std::vector<at::Tensor> values;
        for (auto& v : gathering->values) values.push_back(*v);
        payload = packMessage(gathering->message, values);
      }
      recordSupply(gathering->node, gathering->index, payload);
      flush();  // somebody may be blocked on the value
    });
  }
}

bool smallEnough(const Message& message) {
  if (!config().values) return false;
  int64_t bytes = 0;
  bool floating = false;
  for (const at::Tensor& t : message.tensors) {
    bytes += int64_t(t.nbytes());
    floating = floating || at::isFloatingType(t.scalar_type()) || at::isComplexType(t.scalar_type());
  }
  return bytes <= (floating ? kMaxAskedFloatBytes : kMaxPayloadBytes);
}

struct Receiver::State {
  struct Output {
    Fulfil fulfil;
    std::vector<int64_t> sizes;
    at::ScalarType dtype = at::ScalarType::Undefined;
    std::vector<std::pair<int64_t, Piece>> parts;  // (element in the result, piece of the tensor)
  };
  std::mutex mutex;
  bool bound = false, arrived = false;
  std::optional<std::string> payload;
  std::vector<Output> outputs;
  int64_t numel = 0;

  void deliver() {  // once, when both the payload and the outputs are there
    at::Tensor flat;
    if (payload) flat = unpackValue(*payload);
    if (flat.defined() && flat.numel() != numel) flat = at::Tensor();  // shapes that differ between the ranks
    for (Output& output : outputs) {
      output.fulfil(flat.defined() ? takeTensor(flat, output.sizes, output.dtype, output.parts) : std::nullopt);
    }
    outputs.clear();
    notifySession();
  }
};

Receiver::Receiver(const NodePtr& node, uint32_t index) : state_(std::make_shared<State>()) {
  onValue(node, index, [state = state_](std::optional<std::string> payload) {
    {
      std::lock_guard<std::mutex> hold(state->mutex);
      state->payload = std::move(payload);
      state->arrived = true;
      if (!state->bound) return;
    }
    state->deliver();
  });
}

void Receiver::bind(const Message& outputs) {
  std::vector<State::Output> made(outputs.tensors.size());
  for (size_t i = 0; i < made.size(); ++i) {
    made[i].fulfil = setPending(outputs.tensors[i]);
    made[i].sizes = outputs.tensors[i].sizes().vec();
    made[i].dtype = outputs.tensors[i].scalar_type();
  }
  int64_t at_element = 0;
  for (const Piece& piece : outputs.pieces) {
    made[piece.tensor].parts.emplace_back(at_element, piece);
    at_element += piece.numel;
  }
  {
    std::lock_guard<std::mutex> hold(state_->mutex);
    state_->outputs = std::move(made);
    state_->numel = at_element;
    state_->bound = true;
    if (!state_->arrived) return;
  }
  state_->deliver();
}

void forgetValues(const Message& outputs) {
  for (const at::Tensor& t : outputs.tensors) dropValue(t);
}

}  // namespace phantom
