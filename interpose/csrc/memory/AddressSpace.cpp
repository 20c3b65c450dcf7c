#include "memory/AddressSpace.h"

#include "time/Timeline.h"

#include <Python.h>
#include <c10/util/Exception.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace phantom {
namespace {

// Below where Linux places heap, libraries and mappings (0x55.. and 0x7f..), so that addresses repeat from run to run.
constexpr uintptr_t kPreferredBase = uintptr_t(0x1000'0000'0000);
constexpr size_t kLargestReservation = size_t(1) << 45;
constexpr size_t kSmallestReservation = size_t(1) << 40;

uintptr_t g_base = 0;
size_t g_bytes = 0;
struct sigaction g_previous_handler;

void writeAll(const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t n = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += size_t(n);
  }
}

// The process is lost once it gets here, so that what is not async-signal-safe is worth the risk.
void onFault(int signal, siginfo_t* info, void* context) {
  static thread_local bool inside = false;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address >= g_base && address < g_base + g_bytes && !inside) {
    inside = true;
    char head[160];
    std::snprintf(head, sizeof head, "phantom: host code touched virtual device memory at %p (cuda:%d)", info->si_addr,
                  int(deviceOfAddress(info->si_addr)));
    std::string where;
    if (PyGILState_Check()) where = pythonLocation();
    writeAll(
        std::string(head) + (where.empty() ? "" : " at " + where) +
        ". The simulated GPU's memory has no content; code outside PyTorch's operators must not read or write it.\n");
  }
  if (g_previous_handler.sa_flags & SA_SIGINFO) {
    g_previous_handler.sa_sigaction(signal, info, context);
  } else if (g_previous_handler.sa_handler != SIG_DFL && g_previous_handler.sa_handler != SIG_IGN) {
    g_previous_handler.sa_handler(signal);
  } else {
    std::signal(SIGSEGV, SIG_DFL);           // returning repeats the access, which then ends the process
    if (info->si_code <= 0) raise(SIGSEGV);  // sent by kill(): there is no access to repeat
  }
}

struct Range {
  size_t bytes;
  c10::DeviceIndex device;
};

// Leaked: storages are freed until the very end of the process.
struct Ranges {
  std::mutex mutex;
  std::map<uintptr_t, Range> used;
  std::map<uintptr_t, size_t> free;
};
Ranges& ranges() {
  static auto* instance = [] {
    void* address = MAP_FAILED;
    size_t bytes = kLargestReservation;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (; bytes >= kSmallestReservation && address == MAP_FAILED; bytes /= 2) {
      address = mmap(reinterpret_cast<void*>(kPreferredBase), bytes, PROT_NONE, flags, -1, 0);
      if (address != MAP_FAILED) break;
    }
    TORCH_CHECK(address != MAP_FAILED, "phantom could not reserve ", kSmallestReservation >> 40,
                " TiB of address space for simulated device memory; lift the limit on virtual memory (ulimit -v): ",
                std::strerror(errno));
    madvise(address, bytes, MADV_DONTDUMP);
    g_base = reinterpret_cast<uintptr_t>(address);
    g_bytes = bytes;
    struct sigaction action{};
    action.sa_sigaction = onFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &g_previous_handler);
    auto* made = new Ranges();
    made->free[g_base] = bytes;
    return made;
  }();
  return *instance;
}

}  // namespace

uintptr_t reserveRange(c10::DeviceIndex device, size_t bytes) {
  auto& r = ranges();
  std::lock_guard<std::mutex> lock(r.mutex);
  for (auto it = r.free.begin(); it != r.free.end(); ++it) {
    if (it->second < bytes) continue;
    const uintptr_t address = it->first;
    const size_t rest = it->second - bytes;
    r.free.erase(it);
    if (rest > 0) r.free[address + bytes] = rest;
    r.used[address] = Range{bytes, device};
    return address;
  }
  TORCH_CHECK(false, "phantom ran out of address space for simulated device memory (", bytes, " bytes asked)");
}

void releaseRange(uintptr_t address) {
  auto& r = ranges();
  std::lock_guard<std::mutex> lock(r.mutex);
  const auto used = r.used.find(address);
  TORCH_INTERNAL_ASSERT(used != r.used.end());
  size_t bytes = used->second.bytes;
  r.used.erase(used);
  auto next = r.free.lower_bound(address);
  if (next != r.free.end() && next->first == address + bytes) {
    bytes += next->second;
    next = r.free.erase(next);
  }
  if (next != r.free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == address) {
      before->second += bytes;
      return;
    }
  }
  r.free[address] = bytes;
}

c10::DeviceIndex deviceOfAddress(const void* address) {
  if (!isVirtualAddress(address)) return -1;
  auto& r = ranges();
  std::lock_guard<std::mutex> lock(r.mutex);
  auto it = r.used.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (it == r.used.begin()) return -1;
  --it;
  const bool inside = reinterpret_cast<uintptr_t>(address) < it->first + it->second.bytes;
  return inside ? it->second.device : c10::DeviceIndex(-1);
}

bool isVirtualAddress(const void* address) {
  const auto a = reinterpret_cast<uintptr_t>(address);
  return a >= g_base && a < g_base + g_bytes;
}

}  // namespace phantom
