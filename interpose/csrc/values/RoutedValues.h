// Routers among the operators whose inputs have no value: what they choose, and what a mask keeps them from choosing.
#pragma once

#include "operators/OperatorCall.h"

#include <vector>

namespace phantom {

// topk, argmax or max over the experts' scores: attaches the chosen indices. False if this call is no router's.
bool routeTokens(const Call& call, const std::vector<at::Tensor>& outputs);

// masked_fill of unknown scores: remembers which may not be chosen from the result.
void rememberExclusion(const Call& call, const at::Tensor& out);

// Whether the scores are known but all the same, so that executing a choice among them would send all tokens to one expert.
bool choosesAmongEqualScores(const Call& call);

}  // namespace phantom
