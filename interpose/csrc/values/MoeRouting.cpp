#include "values/MoeRouting.h"

#include "time/Accounting.h"
#include "operators/DispatchGuards.h"
#include "core/Msgpack.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

namespace phantom {
namespace {

constexpr size_t kMostKept = 128;  // choices kept for later calls with the same arguments

MoeRouting& routing() {
  static auto* instance = new MoeRouting;
  return *instance;
}

RouterLayer& layerCallback() {
  static auto* instance = new RouterLayer;
  return *instance;
}

// splitmix64 (Steele, Lea and Flood 2014): a stream of numbers that depends on nothing but its seed.
uint64_t nextRandom(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::vector<int64_t> shuffled(int64_t experts, int64_t layer) {
  std::vector<int64_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  uint64_t state = routing().seed * 0x2545f4914f6cdd1dULL + uint64_t(layer) + 1;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[nextRandom(state) % i]);
  return order;
}

// A step that visits every token once and spreads any run of visits evenly: near the golden section, coprime to the number.
int64_t spreadingStep(int64_t tokens) {
  auto step = std::max<int64_t>(int64_t(double(tokens) * 0.6180339887498949), 1);
  while (std::gcd(step, tokens) != 1) ++step;
  return step;
}

at::Tensor chooseFreely(int64_t tokens, int64_t choices, const std::vector<int64_t>& counts) {
  at::Tensor out = at::empty({tokens, choices}, at::TensorOptions().dtype(c10::kLong).device(c10::kCPU));
  auto* to = out.mutable_data_ptr<int64_t>();
  const int64_t step = spreadingStep(tokens);
  int64_t slot = 0;  // an expert's slots are consecutive and at most `tokens`, so no token meets it twice
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    for (int64_t i = 0; i < counts[expert]; ++i, ++slot) {
      const auto token = int64_t(__int128(slot % tokens) * step % tokens);
      to[token * choices + slot / tokens] = int64_t(expert);
    }
  }
  return out;
}

// Token by token, the experts that lag most behind their share; those that a token may not use come last.
at::Tensor chooseAmong(int64_t tokens, int64_t choices, const std::vector<int64_t>& counts,
                       const at::Tensor& excluded) {
  at::Tensor out = at::empty({tokens, choices}, at::TensorOptions().dtype(c10::kLong).device(c10::kCPU));
  auto* to = out.mutable_data_ptr<int64_t>();
  const bool* not_allowed = excluded.const_data_ptr<bool>();
  const size_t experts = counts.size();
  std::vector<int64_t> given(experts, 0), order(experts);
  std::vector<double> lag(experts);
  for (int64_t token = 0; token < tokens; ++token) {
    const bool* row = not_allowed + token * int64_t(experts);
    for (size_t e = 0; e < experts; ++e) {
      const double due = double(counts[e]) * double(token + 1) / double(tokens) - double(given[e]);
      lag[e] = row[e] ? due - 2.0 * double(tokens) * double(choices) : due;
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + choices, order.end(), [&](int64_t a, int64_t b) {
      return lag[size_t(a)] != lag[size_t(b)] ? lag[size_t(a)] > lag[size_t(b)] : a < b;
    });
    for (int64_t i = 0; i < choices; ++i) {
      to[token * choices + i] = order[size_t(i)];
      ++given[size_t(order[size_t(i)])];
    }
  }
  return out;
}

uint64_t hashOf(const at::Tensor& mask) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  const bool* data = mask.const_data_ptr<bool>();
  for (int64_t i = 0; i < mask.numel(); ++i) hash = (hash ^ uint64_t(data[i])) * 0x100000001b3ULL;
  return hash;
}

using KeptKey = std::tuple<int64_t, int64_t, int64_t, int64_t, uint64_t>;
std::mutex g_routing_mutex;
std::map<KeptKey, at::Tensor>* g_kept = new std::map<KeptKey, at::Tensor>;

struct Totals {
  int64_t calls = 0, tokens = 0, busiest = 0;
};
std::map<std::tuple<int64_t, int64_t, int64_t>, Totals>* g_totals =
    new std::map<std::tuple<int64_t, int64_t, int64_t>, Totals>;

const StatsEntry routers_entry(wire::AccountField::kMoeRouters, &packRouters);

}  // namespace

void setMoeRouting(MoeRouting given) {
  std::lock_guard<std::mutex> hold(g_routing_mutex);
  routing() = std::move(given);
  g_kept->clear();
}

void setRouterLayer(RouterLayer callback) { layerCallback() = std::move(callback); }

int64_t routerLayer() { return layerCallback() ? layerCallback()() : -1; }

std::vector<double> expertShares(int64_t experts, int64_t layer) {
  const MoeRouting& given = routing();
  std::vector<double> shares(static_cast<size_t>(experts), 1.0 / double(experts));
  if (given.mode == RoutingMode::kZipf) {
    const std::vector<int64_t> order = shuffled(experts, layer);
    for (size_t rank = 0; rank < order.size(); ++rank)
      shares[size_t(order[rank])] = std::pow(double(rank + 1), -given.alpha);
  } else if (given.mode == RoutingMode::kShares) {
    const auto& rows = given.layers;
    TORCH_CHECK(rows.size() == 1 || layer < int64_t(rows.size()), "phantom: ", given.source, " has shares for ",
                rows.size(), " MoE layers, but the job has a router in layer ", layer,
                " (counted from 0); add its shares, or give one list for all layers");
    const auto& row = rows[rows.size() == 1 ? 0 : size_t(layer)];
    // A smaller number is that of expert groups, of which routers with limited groups choose first.
    TORCH_CHECK(int64_t(row.size()) >= experts, "phantom: ", given.source, " has shares for ", row.size(),
                " experts, but the router of layer ", layer, " (counted from 0) has ", experts);
    if (int64_t(row.size()) == experts) shares = row;
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<int64_t> expertCounts(int64_t tokens, int64_t choices, const std::vector<double>& shares) {
  const size_t experts = shares.size();
  std::vector<double> target(experts, 0.0);
  std::vector<bool> full(experts, false);
  double left = double(tokens) * double(choices);
  for (bool changed = true; changed;) {  // experts that would get more than one choice of each token are cut to that
    changed = false;
    double sum = 0;
    size_t open = 0;
    for (size_t e = 0; e < experts; ++e) {
      if (!full[e]) sum += shares[e], ++open;
    }
    if (open == 0) break;
    for (size_t e = 0; e < experts; ++e) {
      if (!full[e]) target[e] = sum > 0 ? left * shares[e] / sum : left / double(open);
    }
    for (size_t e = 0; e < experts; ++e) {
      if (full[e] || target[e] <= double(tokens)) continue;
      target[e] = double(tokens);
      left -= target[e];
      full[e] = changed = true;
    }
  }
  std::vector<int64_t> counts(experts);
  int64_t missing = tokens * choices;
  for (size_t e = 0; e < experts; ++e) {
    counts[e] = std::min(int64_t(std::floor(target[e])), tokens);
    missing -= counts[e];
  }
  std::vector<size_t> order(experts);
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return target[a] - double(counts[a]) > target[b] - double(counts[b]); });
  for (size_t i = 0; missing > 0; i = (i + 1) % experts) {
    if (counts[order[i]] >= tokens) continue;
    ++counts[order[i]];
    --missing;
  }
  return counts;
}

at::Tensor chooseExperts(int64_t tokens, int64_t choices, int64_t experts, int64_t layer, const at::Tensor& excluded) {
  PlainDispatch plain;
  if (routing().mode == RoutingMode::kBalanced && !excluded.defined()) {
    return at::arange(tokens * choices, c10::kLong).remainder(experts).view({tokens, choices});
  }
  const KeptKey key(tokens, choices, experts, routing().mode == RoutingMode::kBalanced ? 0 : layer,
                    excluded.defined() ? hashOf(excluded) : 0);
  {
    std::lock_guard<std::mutex> hold(g_routing_mutex);
    auto found = g_kept->find(key);
    if (found != g_kept->end()) return found->second;
  }
  const std::vector<int64_t> counts = expertCounts(tokens, choices, expertShares(experts, layer));
  at::Tensor out =
      excluded.defined() ? chooseAmong(tokens, choices, counts, excluded) : chooseFreely(tokens, choices, counts);
  std::lock_guard<std::mutex> hold(g_routing_mutex);
  if (g_kept->size() >= kMostKept) g_kept->clear();
  g_kept->emplace(key, out);
  return out;
}

void countRouting(int64_t layer, int64_t experts, const at::Tensor& chosen) {
  std::vector<int64_t> counts(static_cast<size_t>(experts), 0);
  const auto* data = chosen.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < chosen.numel(); ++i) ++counts[size_t(data[i])];
  std::lock_guard<std::mutex> hold(g_routing_mutex);
  Totals& totals = (*g_totals)[{layer, experts, chosen.size(1)}];
  ++totals.calls;
  totals.tokens += chosen.size(0);
  totals.busiest += *std::max_element(counts.begin(), counts.end());
}

void packRouters(Packer& packer) {
  std::lock_guard<std::mutex> hold(g_routing_mutex);
  packer.array(g_totals->size());
  for (const auto& [key, totals] : *g_totals) {
    wire::Router{.layer = std::get<0>(key),
                 .experts = std::get<1>(key),
                 .choices = std::get<2>(key),
                 .calls = totals.calls,
                 .tokens = totals.tokens,
                 .busiest = totals.busiest}
        .write(packer);
  }
}

}  // namespace phantom
