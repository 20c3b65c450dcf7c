// One call of an operator at the CUDA key, while it is being worked on. Shared by the Dispatch*.cpp and Values*.cpp files.
#pragma once

#include "operators/OperatorSchema.h"
#include "operators/MetadataCache.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace phantom {

struct InputTensor {
  const at::Tensor* tensor = nullptr;  // owned by the stack
  uint32_t argument = 0;
  bool written = false;
  bool out = false;
};

// Where packed sequences begin, as far as the values of the argument are known now.
struct KnownOffsets {
  uint32_t argument = 0;
  std::vector<int64_t> values;
};

class Call {
 public:
  Call(const OperatorInfo& operator_info, torch::jit::Stack& call_stack);

  const OperatorInfo& info;
  torch::jit::Stack& stack;
  const size_t count;                        // arguments
  const size_t base;                         // of the arguments in the stack
  c10::SmallVector<InputTensor, 12> inputs;  // every defined tensor among the arguments, in order
  c10::Device device;                        // where the results live
  MetadataKey key;
  std::vector<KnownOffsets> offsets;  // of arguments that are marked so; their values are part of `key`

  const c10::IValue& argument(size_t index) const { return stack[base + index]; }
  c10::ArrayRef<c10::IValue> arguments() const { return c10::ArrayRef<c10::IValue>(stack).slice(base, count); }

 private:
  void scan();
  void see(const at::Tensor& tensor, uint32_t argument, class MetadataHasher& hash);
  void hashValue(const c10::IValue& value, ScalarHash how, uint32_t argument, class MetadataHasher& hash);
  void readOffsets(class MetadataHasher& hash);
  bool have_device_ = false;
  bool first_was_host_ = false;
};

// The arguments with their defined tensors replaced, in order, by `tensors`, CUDA devices by `device` and generators by
// none.
torch::jit::Stack withTensors(c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<at::Tensor> tensors,
                              c10::DeviceType device);

// Runs the operator's Meta kernel (or, for want of one, its CPU kernel) and describes what came out.
EntryPtr deriveMetadata(const Call& call);
// Asks the simulator and fills entry.cost. Calls Python without holding any lock.
void priceKernel(const Call& call, MetadataEntry& entry);
uint64_t costGeneration();
// Charges the host, puts the kernels on the current stream of `device`.
void launch(const MetadataEntry& entry, c10::Device device);
void launchOn(const MetadataEntry& entry, c10::DeviceIndex device, c10::StreamId stream);
// For kernels that are written by hand: prices and launches `name` with the given arguments as one kernel. Cached.
void launchNamed(const char* name, const torch::jit::Stack& arguments, c10::ArrayRef<at::Tensor> outputs,
                 c10::Device device);

std::vector<at::Tensor> buildOutputs(const Call& call, const MetadataEntry& entry);
void applyChanges(const Call& call, const MetadataEntry& entry);
// Makes the storage hold at least `bytes`, moving it (without its value) if it is smaller.
void growStorage(const at::Tensor& tensor, size_t bytes);

// The boxed kernel.
void runVirtual(const OperatorInfo& info, torch::jit::Stack& stack);
const OperatorInfo& operatorInfo(const c10::OperatorHandle& op);

// Registration of hand-written kernels at the CUDA key; kept until the process ends.
void registerKernel(const char* name, c10::DispatchKey key, c10::KernelFunction kernel);

}  // namespace phantom
