#include "values/ValueExecution.h"

#include "memory/Allocator.h"
#include "core/Config.h"
#include "values/DeferredValues.h"
#include "operators/DispatchGuards.h"
#include "values/ValueGuess.h"
#include "values/RoutedValues.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <map>

namespace phantom {
namespace {

constexpr int64_t kMostElements = int64_t(1) << 24;        // an operator on more is not executed on the host
constexpr int64_t kMostRoutedElements = int64_t(1) << 28;  // of integers made of a router's choices

const at::Tensor& placeholder() {
  static const at::Tensor* empty = new at::Tensor(at::detail::empty_cpu({0}, c10::kFloat));
  return *empty;
}

bool uniformNow(const ValueSource& source) {
  if (source.host.defined()) return source.host.numel() == 1;
  if (!source.version || source.conjugate || source.negative) return false;
  return source.version->state.load(std::memory_order_acquire) == Version::State::kUniform;
}

// One element of a uniform source, with as many dimensions as it has.
std::optional<at::Tensor> oneElement(const ValueSource& source) {
  if (source.host.defined()) return source.host;
  ValueSource one = source;
  one.sizes.assign(source.sizes.size(), 1);
  one.strides.assign(source.sizes.size(), 1);
  one.offset = 0;
  return readSource(one);
}

bool sameStorage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace

void markUninitialised(const at::Tensor& tensor) {
  if (config().values) setVersion(tensor, uniformZeros());
}

ValueWork::ValueWork(const Call& call, const MetadataEntry& entry) : call_(call), entry_(entry) {
  if (!config().values || entry.metadata_only) return;
  if (!call.info.random) known_ = capture() && !(call.info.guess == Guess::kIndices && choosesAmongEqualScores(call));
}

bool ValueWork::capture() {
  const bool overwrites = call_.info.overwrites_self;
  for (const InputTensor& input : call_.inputs) {
    if (input.out || (overwrites && input.written) || !input.tensor->is_cuda()) continue;
    if (!isKnownOrPending(*input.tensor)) return false;
  }
  sources_.reserve(call_.inputs.size());
  for (const InputTensor& input : call_.inputs) sources_.push_back(sourceOf(*input.tensor));
  return true;
}

void ValueWork::forget(const std::vector<at::Tensor>& outputs) {
  for (const InputTensor& input : call_.inputs) {
    if (!input.written || !input.tensor->is_cuda()) continue;
    if (call_.info.guess == Guess::kKeepFoundInf &&
        call_.info.op.schema().arguments()[input.argument].name() == "found_inf")
      continue;
    setVersion(*input.tensor, VersionPtr());
  }
  if (call_.info.guess != Guess::kNone) applyGuess(call_, outputs);
}

namespace {

// Elementwise on uniform tensors of any size: one element stands for all.
bool runUniform(const Call& call, const MetadataEntry& entry, const std::vector<ValueSource>& sources,
                const std::vector<at::Tensor>& outputs) {
  if (!call.info.elementwise) return false;
  bool guessed = false, routed = false;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < sources.size(); ++i) {
    const InputTensor& input = call.inputs[i];
    const bool blank = input.written && (input.out || call.info.overwrites_self);
    if (input.written && (!input.tensor->is_cuda() || !coversStorage(*input.tensor))) return false;
    if (blank) {
      const c10::SmallVector<int64_t, 5> ones(sources[i].sizes.size(), 1);
      static const int64_t kNone = 0;  // `out=` is resized silently if it is empty
      const at::IntArrayRef shape = input.out ? at::IntArrayRef(&kNone, 1) : at::IntArrayRef(ones);
      tensors.push_back(at::detail::empty_cpu(shape, sources[i].dtype));
      continue;
    }
    if (!uniformNow(sources[i])) return false;
    auto one = oneElement(sources[i]);
    if (!one) return false;
    if (input.written) one = one->clone();
    guessed = guessed || (sources[i].version && sources[i].version->guessed);
    routed = routed || (sources[i].version && sources[i].version->routed);
    tensors.push_back(*one);
  }
  for (const OutputSpec& spec : entry.outputs) {
    if (spec.kind == OutputKind::kHost || spec.kind == OutputKind::kUndefined) return false;
  }
  PlainDispatch plain;
  torch::jit::Stack stack = withTensors(call.arguments(), tensors, c10::kCPU);
  try {
    call.info.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } catch (const std::exception&) { return false; }
  auto attach = [&](const at::Tensor& to, const at::Tensor& value) {
    VersionPtr version = value.numel() == 1 && value.scalar_type() == to.scalar_type()
                             ? uniformVersion(value.resolve_conj().resolve_neg())
                             : VersionPtr();
    if (version) version->guessed = guessed, version->routed = routed;
    setVersion(to, std::move(version));
  };
  size_t next = 0;
  for (const c10::IValue& result : stack) {
    auto take = [&](const at::Tensor& value) {
      if (next < outputs.size() && entry.outputs[next].kind == OutputKind::kFresh) attach(outputs[next], value);
      ++next;
    };
    if (result.isTensor()) {
      take(result.toTensor());
    } else if (result.isTensorList()) {
      for (const c10::IValue& element : result.toListRef()) take(element.toTensor());
    }
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (call.inputs[i].written) attach(*call.inputs[i].tensor, tensors[i]);
  }
  return true;
}

// What has to be kept after the call, or nullptr if it does not fit.
std::shared_ptr<Execution> plan(const Call& call, const MetadataEntry& entry, std::vector<ValueSource>& sources,
                                const std::vector<at::Tensor>& outputs) {
  auto execution = std::make_shared<Execution>();
  execution->info = &call.info;
  execution->unneeded.assign(sources.size(), false);
  int64_t elements = 0;
  bool keeps = false;
  const bool routed = std::any_of(sources.begin(), sources.end(), [](const ValueSource& source) {
    return source.version && source.version->state.load(std::memory_order_acquire) != Version::State::kPending &&
           source.version->routed;
  });
  for (size_t i = 0; i < sources.size(); ++i) {
    const InputTensor& input = call.inputs[i];
    const at::Tensor& tensor = *input.tensor;
    elements += tensor.numel();
    if (!input.written) continue;
    if (!tensor.is_cuda() || tensor.numel() == 0) continue;
    const size_t bytes = tensor.storage().nbytes();
    const bool overwritten = input.out || call.info.overwrites_self;
    const bool rest_needed = !coversStorage(tensor);
    VersionPtr old = overwritten && !rest_needed ? VersionPtr() : versionOf(tensor);
    if (overwritten && rest_needed && (!old || old->state.load() == Version::State::kUnknown)) return nullptr;
    if (!fitsShadow(int64_t(bytes), tensor.scalar_type(), routed)) return nullptr;
    keeps = true;
    if (input.out) {
      execution->unneeded[i] = true;
      Execution::Result result;
      result.target = pendingVersion();
      result.old = rest_needed ? old : VersionPtr();
      result.output = i;
      result.from_argument = true;
      result.bytes = bytes;
      result.layout = sourceOf(tensor);
      result.layout.version = VersionPtr();
      execution->results.push_back(std::move(result));
      continue;
    }
    Execution::Write* same = nullptr;
    for (auto& write : execution->writes) {
      if (sameStorage(*call.inputs[write.inputs[0]].tensor, tensor)) same = &write;
    }
    if (same != nullptr) {
      if (!same->old) same->old = old;
      same->inputs.push_back(i);
      continue;
    }
    execution->unneeded[i] = overwritten;
    Execution::Write write;
    write.target = pendingVersion();
    write.old = old;
    write.bytes = bytes;
    write.inputs = {i};
    execution->writes.push_back(std::move(write));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    const OutputSpec& spec = entry.outputs[k];
    if (spec.kind != OutputKind::kFresh && spec.kind != OutputKind::kHost) continue;
    elements += outputs[k].numel();
    const bool host = spec.kind == OutputKind::kHost;
    if (!host && !fitsShadow(spec.bytes, spec.dtype, routed)) continue;
    keeps = true;
    Execution::Result result;
    result.output = k;
    result.bytes = size_t(spec.bytes);
    if (host) {
      result.host = outputs[k];
    } else {
      result.target = pendingVersion();
      result.layout = sourceOf(outputs[k]);
    }
    execution->results.push_back(std::move(result));
  }
  if (!keeps || elements > (routed ? kMostRoutedElements : kMostElements)) return nullptr;
  return execution;
}

}  // namespace

void ValueWork::finish(const std::vector<at::Tensor>& outputs) {
  if (!config().values || entry_.metadata_only) return;
  if (!known_) {
    if (call_.info.writes || call_.info.guess != Guess::kNone) forget(outputs);
    return;
  }
  if (runUniform(call_, entry_, sources_, outputs)) return;
  std::shared_ptr<Execution> execution = plan(call_, entry_, sources_, outputs);
  if (!execution) {
    forget(outputs);
    return;
  }
  for (auto& write : execution->writes) {
    // One reference each by the allocation, by `old` and by this call's sources; any other is a reader to be kept whole.
    size_t mine = 2;
    for (const ValueSource& source : sources_) mine += source.version.get() == write.old.get() ? 1 : 0;
    write.exclusive = write.old && write.old.use_count() == mine;
    setVersion(*call_.inputs[write.inputs[0]].tensor, write.target);
  }
  for (auto& result : execution->results) {
    if (!result.target) continue;
    setVersion(result.from_argument ? *call_.inputs[result.output].tensor : outputs[result.output], result.target);
  }
  execution->arguments =
      withTensors(call_.arguments(), std::vector<at::Tensor>(call_.inputs.size(), placeholder()), c10::kCPU);
  execution->sources = std::move(sources_);
  runOrDefer(std::move(execution));
}

}  // namespace phantom
