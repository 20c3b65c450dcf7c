// The value of a storage between two writes. Writes make a new version, so that readers of an old one never see them:
// deferred operators need no other ordering.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace phantom {

struct Exclusion;

struct Version final : c10::intrusive_ptr_target {
  enum class State : uint8_t { kPending, kUnknown, kUniform, kFull };

  std::atomic<State> state{State::kPending};      // leaves kPending once
  bool guessed = false;                           // a healthy guess took part
  bool routed = false;                            // what a router chose took part
  std::shared_ptr<const Exclusion> excluded;      // kUnknown: which scores a mask keeps from being chosen
  c10::ScalarType dtype = c10::ScalarType::Byte;  // kUniform
  std::array<uint8_t, 16> element{};              // kUniform: one element's bytes
  c10::Storage bytes;                             // kFull: on the CPU, as long as the virtual storage

  std::mutex mutex;
  std::vector<std::function<void()>> waiters;  // called once, without locks, when the state is final
};
using VersionPtr = c10::intrusive_ptr<Version>;

// What an operator reads: a version seen through a tensor's geometry, or a tensor on the host.
struct ValueSource {
  VersionPtr version;
  at::Tensor host;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  bool conjugate = false, negative = false;
};

// Elements of a storage that were filled with a number that no router chooses, and those of the fill before.
struct Exclusion {
  ValueSource mask;
  c10::SmallVector<int64_t, 5> sizes, strides;  // of the filled tensor
  int64_t offset = 0;
  std::shared_ptr<const Exclusion> earlier;
};

// Null if nothing is known of the tensor's storage. An empty tensor is known.
VersionPtr versionOf(const at::Tensor& tensor);
void setVersion(const at::Tensor& tensor, VersionPtr version);
bool isKnownOrPending(const at::Tensor& tensor);

ValueSource sourceOf(const at::Tensor& tensor);
// A CPU tensor that shares the version's bytes (a uniform one is expanded); nullopt if pending or unknown.
std::optional<at::Tensor> readSource(const ValueSource& source);

VersionPtr uniformVersion(const at::Tensor& one_element);
VersionPtr uniformZeros();  // reads as zeros in any dtype; shared
VersionPtr fullVersion(c10::Storage bytes);
VersionPtr pendingVersion();
VersionPtr unknownVersion(std::shared_ptr<const Exclusion> excluded);
// The storage's bytes, for writing: shared if `exclusive`, else copied; uniform ones are spread over `bytes`.
c10::Storage writableBytes(const Version& version, size_t bytes, bool exclusive);
c10::Storage zeroBytes(size_t bytes);

// Copies content and state of `result` into the pending `target` and calls its waiters.
void settle(const VersionPtr& target, const VersionPtr& result);  // null result: unknown
void whenSettled(const VersionPtr& version, std::function<void()> then);

// Integer and bool storages up to 16 MiB, others up to 1 KiB keep a full shadow; integers made of a router's choices, on which
// all sizes of a mixture of experts depend, up to 256 MiB.
bool fitsShadow(int64_t storage_bytes, c10::ScalarType dtype, bool routed = false);
bool coversStorage(const at::Tensor& tensor);

}  // namespace phantom
