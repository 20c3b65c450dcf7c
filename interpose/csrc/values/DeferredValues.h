// Operators on values: run at once if every value is there, else by the thread that brings the last one.
#pragma once

#include "operators/OperatorSchema.h"
#include "values/ValueVersion.h"

#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace phantom {

struct Execution {
  // A storage that the operator writes to: `target` becomes what it held with the writes done.
  struct Write {
    VersionPtr target, old;  // old: null if nothing of it is needed
    size_t bytes = 0;
    bool exclusive = false;      // nobody else reads `old`
    std::vector<size_t> inputs;  // in place: indices into `sources`
  };
  // A result (fresh, or an `out=` argument) laid out as its virtual tensor is.
  struct Result {
    VersionPtr target, old;      // old: the rest of an `out=` argument's storage, if not covered
    size_t output = 0;           // among the operator's flattened tensor results
    bool from_argument = false;  // `output` is instead an index into `sources` (an `out=` argument)
    size_t bytes = 0;
    ValueSource layout;
    at::Tensor host;  // a result on the host is copied here
  };

  const OperatorInfo* info = nullptr;
  torch::jit::Stack arguments;       // tensors are placeholders
  std::vector<ValueSource> sources;  // in the order of the arguments' defined tensors
  std::vector<bool> unneeded;        // sources whose value does not matter (`out=`, zero_)
  std::vector<Write> writes;
  std::vector<Result> results;
};

// Runs it now or when its pending sources are settled; settles every target.
void runOrDefer(std::shared_ptr<Execution> execution);

// Operators whose CPU kernel refused the values, with how often: their results are unknown.
std::map<std::string, uint64_t> failedExecutions();

}  // namespace phantom
