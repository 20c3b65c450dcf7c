#include "values/DeferredValues.h"

#include "operators/OperatorCall.h"
#include "operators/DispatchGuards.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <set>

namespace phantom {
namespace {

std::mutex g_failures_mutex;
std::map<std::string, uint64_t>* g_failures = new std::map<std::string, uint64_t>;

at::Tensor over(const c10::Storage& bytes, const ValueSource& layout) {
  ValueSource view = layout;
  view.host = at::Tensor();
  view.version = fullVersion(bytes);
  return *readSource(view);
}

void settleUnknown(const Execution& execution) {
  for (const auto& write : execution.writes) settle(write.target, nullptr);
  for (const auto& result : execution.results) {
    if (result.target) settle(result.target, nullptr);
  }
}

bool any(const Execution& execution, bool Version::* mark) {
  for (size_t i = 0; i < execution.sources.size(); ++i) {
    if (!execution.unneeded[i] && execution.sources[i].version && (*execution.sources[i].version).*mark) return true;
  }
  return false;
}

// CPU kernels lack data types that CUDA kernels have (histc of integers): the same operator on wider numbers, which hold these.
// False if there is nothing wider.
bool widen(std::vector<at::Tensor>& tensors) {
  bool wider = false;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const c10::ScalarType dtype = tensor.scalar_type();
    if (c10::isIntegralType(dtype, /*includeBool=*/false)) tensor = tensor.to(c10::kDouble), wider = true;
    else if (dtype == c10::kHalf || dtype == c10::kBFloat16) tensor = tensor.to(c10::kFloat), wider = true;
  }
  return wider;
}

torch::jit::Stack runOnHost(const Execution& execution, const std::vector<at::Tensor>& tensors) {
  torch::jit::Stack stack = withTensors(execution.arguments, tensors, c10::kCPU);
  try {
    execution.info->op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  } catch (const c10::NotImplementedError&) {
    std::vector<at::Tensor> wide = tensors;
    if (execution.info->writes || !widen(wide)) throw;
    stack = withTensors(execution.arguments, wide, c10::kCPU);
  }
  execution.info->op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  for (c10::IValue& result : stack) {
    if (!result.isTensor()) continue;
    for (const auto& wanted : execution.results) {
      if (wanted.from_argument || wanted.output != size_t(&result - stack.data())) continue;
      result = result.toTensor().to(wanted.host.defined() ? wanted.host.scalar_type() : wanted.layout.dtype);
    }
  }
  return stack;
}

std::vector<at::Tensor> flatten(const torch::jit::Stack& results) {
  std::vector<at::Tensor> out;
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      out.push_back(result.toTensor());
    } else if (result.isTensorList()) {
      for (const c10::IValue& element : result.toListRef()) out.push_back(element.toTensor());
    }
  }
  return out;
}

VersionPtr laidOut(const Execution::Result& result, const at::Tensor& value) {
  const auto& layout = result.layout;
  if (!value.defined() || value.sizes() != at::IntArrayRef(layout.sizes) || value.scalar_type() != layout.dtype)
    return VersionPtr();
  const bool adopt = !result.old && value.strides() == at::IntArrayRef(layout.strides) && value.storage_offset() == 0 &&
                     layout.offset == 0 && value.storage().nbytes() >= result.bytes &&
                     value.storage().use_count() == 1 && !value.is_conj() && !value.is_neg();
  if (adopt) return fullVersion(value.storage());
  c10::Storage bytes = result.old ? writableBytes(*result.old, result.bytes, false) : zeroBytes(result.bytes);
  over(bytes, layout).copy_(value);
  return fullVersion(std::move(bytes));
}

void runNow(const Execution& execution) {
  const bool guessed = any(execution, &Version::guessed);
  const bool routed = any(execution, &Version::routed);
  std::vector<at::Tensor> tensors(execution.sources.size());
  std::vector<c10::Storage> written(execution.writes.size());
  for (size_t w = 0; w < execution.writes.size(); ++w) {
    const auto& write = execution.writes[w];
    written[w] = write.old ? writableBytes(*write.old, write.bytes, write.exclusive) : zeroBytes(write.bytes);
    for (size_t input : write.inputs) tensors[input] = over(written[w], execution.sources[input]);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) continue;
    if (execution.unneeded[i]) {
      tensors[i] = at::detail::empty_cpu({0}, execution.sources[i].dtype);
      continue;
    }
    const auto value = readSource(execution.sources[i]);
    if (!value) {
      settleUnknown(execution);
      return;
    }
    tensors[i] = *value;
  }
  try {
    const std::vector<at::Tensor> out = flatten(runOnHost(execution, tensors));
    for (const auto& result : execution.results) {
      const at::Tensor value = result.from_argument ? tensors[result.output] : out.at(result.output);
      if (result.host.defined()) {
        result.host.copy_(value);
        continue;
      }
      VersionPtr made = laidOut(result, value);
      if (made) made->guessed = guessed, made->routed = routed;
      settle(result.target, made);
    }
  } catch (const std::exception&) {
    // Counted and reported; what the operator would have given is unknown.
    {
      std::lock_guard<std::mutex> hold(g_failures_mutex);
      ++(*g_failures)[execution.info->name];
    }
    settleUnknown(execution);
    return;
  }
  for (size_t w = 0; w < execution.writes.size(); ++w) {
    const auto& write = execution.writes[w];
    VersionPtr made = fullVersion(std::move(written[w]));
    made->guessed = guessed || (write.old && write.old->guessed);
    made->routed = routed || (write.old && write.old->routed);
    settle(write.target, made);
  }
}

}  // namespace

void runOrDefer(std::shared_ptr<Execution> execution) {
  std::set<Version*> seen;
  std::vector<VersionPtr> pending;
  auto look = [&](const VersionPtr& version) {
    if (version && version->state.load(std::memory_order_acquire) == Version::State::kPending &&
        seen.insert(version.get()).second) {
      pending.push_back(version);
    }
  };
  for (size_t i = 0; i < execution->sources.size(); ++i) {
    if (!execution->unneeded[i]) look(execution->sources[i].version);
  }
  for (const auto& write : execution->writes) look(write.old);
  for (const auto& result : execution->results) look(result.old);
  if (pending.empty()) {
    PlainDispatch plain;
    runNow(*execution);
    return;
  }
  for (ValueSource& source : execution->sources) {
    if (source.host.defined()) source.host = source.host.clone();  // the script may write to it before its turn comes
  }
  for (auto& write : execution->writes) write.exclusive = false;
  auto left = std::make_shared<std::atomic<size_t>>(pending.size());
  for (const VersionPtr& version : pending) {
    whenSettled(version, [execution, left] {
      if (left->fetch_sub(1) != 1) return;
      PlainDispatch plain;
      runNow(*execution);
    });
  }
}

std::map<std::string, uint64_t> failedExecutions() {
  std::lock_guard<std::mutex> hold(g_failures_mutex);
  return *g_failures;
}

}  // namespace phantom
