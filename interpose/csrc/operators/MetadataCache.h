// What an operator makes of given input metadata: output specifications and cost, bounded and shared by all threads.
#pragma once

#include "core/Time.h"

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace phantom {

struct MetadataKey {
  uint64_t low = 0, high = 0;
  bool operator==(const MetadataKey& other) const { return low == other.low && high == other.high; }
};

// Two independent 64-bit lanes; murmur3's and splitmix's multipliers.
class MetadataHasher {
 public:
  void add(uint64_t word) {
    low_ = (low_ ^ word) * 0xff51afd7ed558ccdULL;
    low_ ^= low_ >> 32;
    high_ = (high_ + word) * 0xc4ceb9fe1a85ec53ULL;
    high_ ^= high_ >> 29;
  }
  MetadataKey key() const { return {low_, high_}; }

 private:
  uint64_t low_ = 0x9e3779b97f4a7c15ULL;
  uint64_t high_ = 0xc2b2ae3d27d4eb4fULL;
};

enum class OutputKind : uint8_t { kFresh, kInput, kView, kUndefined, kHost };

struct OutputSpec {
  OutputKind kind = OutputKind::kUndefined;
  uint16_t source = 0;  // index among the call's tensor inputs (kInput, kView)
  bool conjugate = false, negative = false;
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t offset = 0;  // relative to the source's storage offset (kView)
  int64_t bytes = 0;   // of the storage (kFresh)
  c10::SmallVector<int64_t, 5> sizes, strides;
};

struct ReturnSpec {
  enum class Kind : uint8_t { kTensor, kList, kConstant } kind = Kind::kTensor;
  uint32_t first = 0, count = 0;  // in MetadataEntry::outputs
  c10::IValue constant;
};

// A written input whose sizes, strides or offset the operator changes (resized `out=`, `t_`, `squeeze_`).
struct InputChange {
  uint16_t input = 0;
  int64_t offset = 0;  // relative to the old storage offset
  c10::SmallVector<int64_t, 5> sizes, strides;
};

struct KernelCost {
  Picoseconds launch_ps = 0;  // of each launch; the last also takes remainder_ps
  Picoseconds remainder_ps = 0;
  int64_t scratch_bytes = 0;
  Picoseconds ideal_ps = 0;  // of its matrix products at the peak of their data type
  uint32_t launches = 0;
  uint32_t kernel = 0;          // internKernel
  bool matrix_product = false;  // wants the cuBLAS workspace
};

struct MetadataEntry final : c10::intrusive_ptr_target {
  std::vector<ReturnSpec> returns;
  std::vector<OutputSpec> outputs;
  std::vector<InputChange> changes;
  bool metadata_only = false;  // launches nothing: views and the like
  bool any_fresh = false;
  uint64_t cost_generation = 0;  // of the callback that priced it
  KernelCost cost;
};
using EntryPtr = c10::intrusive_ptr<MetadataEntry>;

EntryPtr findMetadata(const MetadataKey& key);
void storeMetadata(const MetadataKey& key, EntryPtr entry);
size_t metadataEntries();
void setMetadataCapacity(size_t entries);

}  // namespace phantom
