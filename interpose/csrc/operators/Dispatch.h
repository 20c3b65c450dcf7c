// Kernels at the CUDA dispatch key of every operator, and what else of the dispatcher the device needs.
#pragma once

#include "core/Time.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace phantom {

void installDispatch();

// A fresh virtual tensor on `device` (its allocation is made on that device's current stream).
at::Tensor makeVirtual(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device);

// Asks the simulator for costs (docs/architecture.md, "Kernel costs"): msgpack in, msgpack out. Without a callback every
// kernel takes no time and is counted as unpriced.
using CostCallback = std::function<std::string(const std::string& request)>;
void setCostCallback(CostCallback callback);

struct DispatchCounters {
  uint64_t operators = 0, hits = 0, misses = 0;
};
DispatchCounters dispatchCounters();

}  // namespace phantom
