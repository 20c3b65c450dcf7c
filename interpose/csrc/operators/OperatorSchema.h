// What the dispatcher kernels know about an operator before any call: read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

namespace phantom {

enum class ScalarHash : uint8_t { kFloatsByType, kByType, kByValue };

// Operators whose result is known, or sensibly guessed, although their inputs' values are not (docs of values/Values.h).
enum class Guess : uint8_t {
  kNone,
  kAllFalse,
  kAllTrue,
  kCompare,
  kAny,
  kAll,
  kCountNonzero,
  kIndices,
  kSortIndices,
  kInfoZero,
  kKeepFoundInf,
  kMaskedFill
};

struct ArgumentInfo {
  bool written = false;  // alias annotation with `!`
  bool out = false;      // keyword-only and written: its old value does not matter
  bool offsets = false;  // where packed sequences begin: their values decide the cost
  ScalarHash scalar = ScalarHash::kByValue;
};

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op);

  c10::OperatorHandle op;
  std::string name;  // "aten::add.Tensor"
  std::string base;  // "add"
  std::vector<ArgumentInfo> arguments;
  bool writes = false;
  bool random = false;                // takes a generator or is marked as seeded: never executed on values
  bool changes_metadata = false;      // at::Tag::inplace_view
  bool allocates_only = false;        // empty and the like: no kernel
  bool overwrites_self = false;       // the written argument's old value does not matter (zero_, fill_)
  bool host_tensors_allowed = false;  // CPU tensors with dimensions beside CUDA ones are no error
  bool elementwise = false;           // at::Tag::pointwise
  bool matrix_product = false;
  bool fp32_by_tf32 = false;     // its cost depends on whether fp32 may take the TF32 units
  bool cost_by_offsets = false;  // an argument is marked `offsets`
  Guess guess = Guess::kNone;
};

}  // namespace phantom
