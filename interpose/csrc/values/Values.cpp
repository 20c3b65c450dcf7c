#include "values/Values.h"

#include "time/Accounting.h"
#include "core/Config.h"
#include "operators/DispatchGuards.h"
#include "time/Session.h"
#include "time/Timeline.h"
#include "values/ValueExecution.h"
#include "values/ValueGuess.h"
#include "values/HostValues.h"

#include <ATen/EmptyTensor.h>

#include <mutex>
#include <set>

namespace phantom {
namespace {

std::mutex g_reads_mutex;
std::map<std::string, uint64_t>* g_reads = new std::map<std::string, uint64_t>;
std::set<std::string>* g_warned = new std::set<std::string>;

// A CPU tensor that shares nothing with the shadow, which later writes may change.
std::optional<at::Tensor> detached(const ValueSource& source) {
  auto value = readSource(source);
  if (!value) return std::nullopt;
  PlainDispatch plain;
  const bool uniform = source.version && source.version->state.load() == Version::State::kUniform;
  return uniform ? *value : value->clone();
}

// A guessed integer or shape may send the script another way than a real run, so it is told at once; a float is not.
void warnOnce(const std::string& where, const char* what) {
  {
    std::lock_guard<std::mutex> hold(g_reads_mutex);
    if (!g_warned->insert(where).second) return;
  }
  const std::string text =
      where + ": " + what + " reads a number that is not computed on the virtual GPU; a guess is used";
  addWarning(text);
  TORCH_WARN("phantom: ", text);
}

void count(const char* what, bool warn) {
  std::string where = pythonLocation();
  if (where.empty()) where = "autograd thread";
  TORCH_CHECK(config().unknown_values != UnknownValues::kError, "phantom: ", what, " at ", where,
              " reads a value that is not computed on the virtual GPU (--unknown-values error)");
  {
    std::lock_guard<std::mutex> hold(g_reads_mutex);
    ++(*g_reads)[where];
  }
  if (warn) warnOnce(where, what);
}

}  // namespace

std::optional<at::Tensor> knownValue(const at::Tensor& tensor) { return readSource(sourceOf(tensor)); }

bool hasValue(const at::Tensor& tensor) { return !tensor.is_cuda() || isKnownOrPending(tensor); }

bool valuePending(const at::Tensor& tensor) {
  const VersionPtr version = tensor.is_cuda() ? versionOf(tensor) : VersionPtr();
  return version && version->state.load(std::memory_order_acquire) == Version::State::kPending;
}

void dropValue(const at::Tensor& tensor) {
  if (tensor.is_cuda()) setVersion(tensor, VersionPtr());
}

void setValue(const at::Tensor& tensor, const at::Tensor& cpu_value) {
  if (!tensor.is_cuda()) {
    tensor.copy_(cpu_value);
    return;
  }
  if (!config().values || tensor.numel() == 0) return;
  PlainDispatch plain;
  const bool covers = coversStorage(tensor);
  const bool uniform = cpu_value.numel() == 1 ||
                       (cpu_value.numel() > 0 && std::all_of(cpu_value.strides().begin(), cpu_value.strides().end(),
                                                             [](int64_t s) { return s == 0; }));
  if (covers && uniform) {
    at::Tensor one = cpu_value.as_strided({1}, {1}, cpu_value.storage_offset());
    setVersion(tensor, uniformVersion(one.to(tensor.scalar_type()).resolve_conj().resolve_neg()));
    return;
  }
  const VersionPtr old = versionOf(tensor);
  const size_t bytes = tensor.storage().nbytes();
  if (!fitsShadow(int64_t(bytes), tensor.scalar_type())) {
    dropValue(tensor);
    return;
  }
  if (covers) {
    VersionPtr version = fullVersion(zeroBytes(bytes));
    ValueSource to = sourceOf(tensor);
    to.version = version;
    readSource(to)->copy_(cpu_value.reshape(tensor.sizes()));
    setVersion(tensor, std::move(version));
    return;
  }
  if (!old) return;  // the rest stays unknown, so all of it does
  // A piece of a storage: deferred as a copy if the rest is pending.
  const Fulfil fulfil = setPending(tensor);
  fulfil(cpu_value);
}

void setRoutedValue(const at::Tensor& tensor, const at::Tensor& cpu_value) {
  PlainDispatch plain;
  const size_t bytes = tensor.storage().nbytes();
  if (!config().values || !coversStorage(tensor) || !fitsShadow(int64_t(bytes), tensor.scalar_type(), true)) {
    dropValue(tensor);
    return;
  }
  VersionPtr version = fullVersion(zeroBytes(bytes));
  ValueSource to = sourceOf(tensor);
  to.version = version;
  readSource(to)->copy_(cpu_value);
  version->routed = true;
  setVersion(tensor, std::move(version));
}

Fulfil setPending(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) {
    return [tensor](std::optional<at::Tensor> value) {
      if (value) tensor.copy_(value->reshape(tensor.sizes()));
    };
  }
  const size_t bytes = tensor.storage().nbytes();
  const VersionPtr old = versionOf(tensor);
  const bool covers = coversStorage(tensor);
  const bool unknown_rest = !covers && (!old || old->state.load() == Version::State::kUnknown);
  const bool large = !fitsShadow(int64_t(bytes), tensor.scalar_type());
  if (!config().values || tensor.numel() == 0 || unknown_rest || (large && !covers)) {
    dropValue(tensor);
    return [](std::optional<at::Tensor>) {};
  }
  VersionPtr target = pendingVersion();
  ValueSource layout = sourceOf(tensor);
  setVersion(tensor, target);
  return [target, layout, bytes, old, covers, large](std::optional<at::Tensor> value) {
    if (!value) {
      settle(target, nullptr);
      return;
    }
    PlainDispatch plain;
    int64_t elements = 1;
    for (int64_t n : layout.sizes) elements *= n;
    at::Tensor given = value->numel() == elements ? value->reshape(layout.sizes) : *value;
    const bool uniform = std::all_of(given.strides().begin(), given.strides().end(), [](int64_t s) { return s == 0; });
    if (covers && (uniform || given.numel() == 1)) {
      at::Tensor one = given.as_strided({1}, {1}, given.storage_offset());
      settle(target, uniformVersion(one.to(layout.dtype).resolve_conj().resolve_neg()));
      return;
    }
    if (large) {
      settle(target, nullptr);
      return;
    }
    auto write = [target, layout, bytes, old, given] {
      if (old && old->state.load() == Version::State::kUnknown) {
        settle(target, nullptr);
        return;
      }
      PlainDispatch plain_again;
      c10::Storage storage = old ? writableBytes(*old, bytes, false) : zeroBytes(bytes);
      ValueSource to = layout;
      to.version = fullVersion(storage);
      readSource(to)->copy_(given);
      settle(target, fullVersion(std::move(storage)));
    };
    if (covers || !old) {
      c10::Storage storage = zeroBytes(bytes);
      ValueSource to = layout;
      to.version = fullVersion(storage);
      readSource(to)->copy_(given);
      settle(target, fullVersion(std::move(storage)));
    } else {
      whenSettled(old, write);
    }
  };
}

void whenKnown(const at::Tensor& tensor, std::function<void(std::optional<at::Tensor>)> then) {
  ValueSource source = sourceOf(tensor);
  if (!source.version || source.host.defined()) {
    then(detached(source));
    return;
  }
  whenSettled(source.version, [source, then = std::move(then)] { then(detached(source)); });
}

std::optional<at::Tensor> awaitValue(const at::Tensor& tensor) {
  ValueSource source = sourceOf(tensor);
  if (source.version && source.version->state.load(std::memory_order_acquire) == Version::State::kPending) {
    whenSettled(source.version, [] { notifySession(); });
    const VersionPtr version = source.version;
    awaitCondition([version] { return version->state.load(std::memory_order_acquire) != Version::State::kPending; });
  }
  return detached(source);
}

at::Tensor healthyValue(const at::Tensor& like, const char* what) {
  count(what, c10::isIntegralType(like.scalar_type(), /*includeBool=*/false));
  PlainDispatch plain;
  return healthyElement(like.scalar_type()).view(std::vector<int64_t>(size_t(like.dim()), 1)).expand(like.sizes());
}

void countGuessedRead(const at::Tensor& tensor, const char* what) {
  const VersionPtr version = tensor.is_cuda() ? versionOf(tensor) : VersionPtr();
  if (version && version->guessed) count(what, false);
}

void countGuessedShape(const char* what) { count(what, true); }

std::map<std::string, uint64_t> unknownReads() {
  std::lock_guard<std::mutex> hold(g_reads_mutex);
  return *g_reads;
}

}  // namespace phantom
