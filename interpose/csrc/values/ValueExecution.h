// What the dispatcher kernels do with values: execution on shadows, guesses, dropping what is overwritten.
#pragma once

#include "operators/OperatorCall.h"
#include "values/ValueVersion.h"

#include <vector>

namespace phantom {

// Memory that nothing was written to reads as zeros, which is as good as anything.
void markUninitialised(const at::Tensor& tensor);

// The work on values of one boxed call: constructed before outputs are made, finished after.
class ValueWork {
 public:
  ValueWork(const Call& call, const MetadataEntry& entry);
  void finish(const std::vector<at::Tensor>& outputs);

 private:
  bool capture();
  void forget(const std::vector<at::Tensor>& outputs);

  const Call& call_;
  const MetadataEntry& entry_;
  bool known_ = false;                // every input carries a value (perhaps a pending one)
  std::vector<ValueSource> sources_;  // parallel to call.inputs, if known_
};

}  // namespace phantom
