// Which experts the tokens of a router go to, although its scores are never computed: `--moe-routing`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace phantom {

class Packer;

enum class RoutingMode : uint8_t { kBalanced, kZipf, kShares };

struct MoeRouting {
  RoutingMode mode = RoutingMode::kBalanced;
  double alpha = 0;                         // kZipf: the expert of rank r has a share in proportion to 1 / r^alpha
  std::vector<std::vector<double>> layers;  // kShares: shares of the experts; a single entry holds for every layer
  std::string source;                       // kShares: the file they came from, for messages
  uint64_t seed = 0;                        // kZipf: which expert has which rank, layer by layer
};
void setMoeRouting(MoeRouting routing);

// The layer of the router that runs on this thread, below 0 if what runs is no router. Called with the GIL held.
using RouterLayer = std::function<int64_t()>;
void setRouterLayer(RouterLayer callback);
int64_t routerLayer();

// Share of the choices that each expert gets; they add up to 1.
std::vector<double> expertShares(int64_t experts, int64_t layer);

// How often each expert is chosen when each of `tokens` chooses `choices` different ones: in proportion to the shares as far
// as no expert is chosen more than once by a token; the sum is tokens * choices, roundings go to the largest remainders.
std::vector<int64_t> expertCounts(int64_t tokens, int64_t choices, const std::vector<double>& shares);

// Experts chosen by each token, int64 of (tokens, choices), a token's all different, with the counts above; every stretch of
// tokens has about the same shares. `excluded`: bool of (tokens, experts) on the CPU, or undefined; true where a token may not
// go; the counts are then followed as far as they can be.
at::Tensor chooseExperts(int64_t tokens, int64_t choices, int64_t experts, int64_t layer, const at::Tensor& excluded);

// For the summary: [[layer, experts, choices, calls, tokens, choices of the busiest expert], ...].
void packRouters(Packer& packer);
void countRouting(int64_t layer, int64_t experts, const at::Tensor& chosen);

}  // namespace phantom
