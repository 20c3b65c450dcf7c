#include "values/HostValues.h"

#include "operators/DispatchGuards.h"
#include "time/Session.h"
#include "values/Values.h"
#include "values/ValueVersion.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace phantom {
namespace {

constexpr int64_t kHealthyBytes = int64_t(64) << 10;  // larger copies of unknown values are zero pages

struct Outstanding {
  at::Tensor host;
  at::Tensor source;  // keeps the geometry; its version is caught below
  ValueSource value;
};

std::mutex g_outstanding_mutex;
std::vector<Outstanding>* g_outstanding = new std::vector<Outstanding>;
std::atomic<size_t> g_waiting{0};

void fillUnknown(const at::Tensor& host, const at::Tensor& source, const char* what) {
  PlainDispatch plain;
  if (int64_t(host.numel() * host.itemsize()) <= kHealthyBytes)
    host.copy_(healthyValue(source, what).expand(host.sizes()));
  else zeroHostMemory(host);
}

}  // namespace

void zeroHostMemory(const at::Tensor& host) {
  if (!host.is_non_overlapping_and_dense()) {
    PlainDispatch plain;
    host.zero_();
    return;
  }
  auto* begin = static_cast<char*>(host.mutable_data_ptr());
  char* end = begin + host.numel() * host.itemsize();
  // Only memory of the plain CPU allocator is surely private and anonymous, so that dropped pages come back as zeros.
  const bool anonymous = host.storage().allocator() == c10::GetCPUAllocator() &&
                         host.storage().data_ptr().get_deleter() == c10::GetCPUAllocator()->raw_deleter();
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
  char* first = reinterpret_cast<char*>((uintptr_t(begin) + page - 1) / page * page);
  char* last = reinterpret_cast<char*>(uintptr_t(end) / page * page);
  if (anonymous && last > first && madvise(first, size_t(last - first), MADV_DONTNEED) == 0) {
    std::memset(begin, 0, size_t(first - begin));
    std::memset(last, 0, size_t(end - last));
  } else {
    std::memset(begin, 0, size_t(end - begin));
  }
}

void fillHost(const at::Tensor& host, const at::Tensor& source, const char* what) {
  const std::optional<at::Tensor> value = awaitValue(source);
  if (!value) {
    fillUnknown(host, source, what);
    return;
  }
  countGuessedRead(source, what);
  PlainDispatch plain;
  host.copy_(*value);
}

void fillHostLater(const at::Tensor& host, const at::Tensor& source, c10::DeviceIndex) {
  if (!valuePending(source)) {
    fillHost(host, source, "copy to the host");
    return;
  }
  std::lock_guard<std::mutex> hold(g_outstanding_mutex);
  g_outstanding->push_back({host, source, sourceOf(source)});
  g_waiting.fetch_add(1);
}

void settleHostCopies() {
  if (g_waiting.load(std::memory_order_relaxed) == 0) return;
  std::vector<Outstanding> all;
  {
    std::lock_guard<std::mutex> hold(g_outstanding_mutex);
    all.swap(*g_outstanding);
    g_waiting = 0;
  }
  for (Outstanding& copy : all) {
    const VersionPtr version = copy.value.version;
    if (version->state.load(std::memory_order_acquire) == Version::State::kPending) {
      whenSettled(version, [] { notifySession(); });
      awaitCondition([version] { return version->state.load(std::memory_order_acquire) != Version::State::kPending; });
    }
    const auto value = readSource(copy.value);
    PlainDispatch plain;
    if (value) copy.host.copy_(*value);
    else fillUnknown(copy.host, copy.source, "copy to the host");
  }
}

}  // namespace phantom
