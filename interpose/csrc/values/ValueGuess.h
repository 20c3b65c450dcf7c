// What operators on unknown values give where training needs an answer: numerically healthy, the same on all ranks.
#pragma once

#include "operators/OperatorCall.h"

#include <vector>

namespace phantom {

// Attaches guessed values to the outputs of a call whose inputs are not all known.
void applyGuess(const Call& call, const std::vector<at::Tensor>& outputs);

// One element, on the CPU, of what unknown numbers of this type read as.
at::Tensor healthyElement(c10::ScalarType dtype);

// Positions modulo `classes` along `dim`, shaped like `tensor`: a balanced choice.
at::Tensor balancedIndices(const at::Tensor& tensor, int64_t dim, int64_t classes);

// Attaches `value`, flagged as a guess.
void attachGuess(const at::Tensor& tensor, const at::Tensor& value);

}  // namespace phantom
