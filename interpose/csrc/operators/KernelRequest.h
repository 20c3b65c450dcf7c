// The request that asks the simulator what a kernel costs (docs/architecture.md, "Kernel costs").
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <string>
#include <string_view>

namespace phantom {

// Fixed-size answer for one kernel.
struct CostAnswer {
  int64_t duration_ps = 0;
  std::string source = "unpriced";
  std::string klass = "other";
  int64_t launches = 1;
  int64_t scratch_bytes = 0;
  int64_t ideal_ps = 0;  // of its matrix products at the peak of their data type; older replies have none
};

// Bit 0: matrix products of fp32 may use TF32; bit 1: convolutions may (torch.backends.cuda.matmul.fp32_precision, ...).
uint64_t tf32State();

// A list of one kernel: operator, arguments in schema order, outputs.
std::string packKernelRequest(std::string_view op, c10::ArrayRef<c10::IValue> arguments,
                              c10::ArrayRef<c10::IValue> outputs);
// Throws std::runtime_error if the reply is not a list of one well-formed answer.
CostAnswer unpackKernelReply(const std::string& reply);

// Calls the callback set by setCostCallback; unpriced without one.
CostAnswer askCost(const std::string& request);
// Asks for the cost of one kernel and puts it in entry.cost; `op` is the kernel's name in reports.
void priceRequest(const std::string& op, const std::string& request, struct MetadataEntry& entry);

}  // namespace phantom
