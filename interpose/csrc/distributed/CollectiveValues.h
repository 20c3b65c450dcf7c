// Values that travel with collectives: what this rank contributes, and where the result goes.
#pragma once

#include "core/Time.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace phantom {

// Part of the flattened tensor number `tensor`; a message is a sequence of pieces.
struct Piece {
  uint32_t tensor;
  int64_t offset, numel;
};

struct Message {
  std::vector<at::Tensor> tensors;
  std::vector<Piece> pieces;

  void add(const at::Tensor& tensor);  // the whole tensor
  void addChunk(uint32_t tensor, int64_t chunk, int64_t chunks);
  int64_t numel() const;
};

enum class Offer { kNone, kNow, kLater };

// What is known of a message: kNow fills `payload`; kLater: all of it is or will be known, see supplyLater.
Offer offerValue(const Message& message, std::string& payload);
// Sends SUPPLY(node, index) once all tensors are known. Call after the record that said "later" and before the outputs of
// the same collective are touched: it captures the tensors as they are now.
void supplyLater(const NodePtr& node, uint32_t index, const Message& message);

// Small enough that a rank without a value of its own asks for the result: integers up to 16 MiB, floats up to 1 KiB.
bool smallEnough(const Message& message);

// Takes the VALUE of (node, index) apart. Made before the record is posted, so that no answer is missed; bind() is called
// when the inputs have been captured.
class Receiver {
 public:
  Receiver(const NodePtr& node, uint32_t index);
  void bind(const Message& outputs);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The result of a collective is not known to anyone: so are the outputs.
void forgetValues(const Message& outputs);

}  // namespace phantom
