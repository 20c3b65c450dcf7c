// Large CPU initialisations that leave their pages untouched.
//
// A model of 7 billion parameters initialised on the CPU is 28 GB in every rank, and nothing ever looks at the numbers.
// So random numbers and fills of floating-point CPU tensors above config().lazy_host_bytes are left out: the pages go
// back to the kernel and read as zeros. Operators that would touch such a tensor only to find zeros again (scaling,
// clamping, conversion) are left out too; their result is exact. Integers and bools are always real.
#include "core/Registry.h"
#include "core/Config.h"
#include "core/Device.h"
#include "memory/HostMemory.h"
#include "core/QuietWarnings.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/clamp_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/erfinv_cpu_dispatch.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/uniform_native.h>
#include <ATen/ops/zero_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace phantom {
namespace {

std::atomic<uint64_t> g_lazy_bytes{0};

struct Pages {
  uintptr_t begin, first, end, last;  // bytes [begin, last), whole pages [first, end)
};

Pages pagesOf(const at::Tensor& t) {
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  const uintptr_t last = begin + size_t(t.numel()) * t.itemsize();
  return {begin, (begin + page - 1) / page * page, last / page * page, last};
}

// Private anonymous memory that belongs to the tensor alone: mapped files and shared memory have other deleters.
bool isPlainHostMemory(const at::Tensor& t) {
  if (!t.has_storage()) return false;
  const c10::DataPtr& ptr = t.storage().data_ptr();
  static const c10::DeleterFnPtr plain = c10::GetDefaultCPUAllocator()->raw_deleter();
  const c10::DeleterFnPtr deleter = ptr.get_deleter();
  return deleter != nullptr && (deleter == plain || deleter == pinnedAllocator()->raw_deleter());
}

bool isLarge(const at::Tensor& t) {
  const int64_t threshold = config().lazy_host_bytes;
  return threshold > 0 && t.device().is_cpu() && t.layout() == at::kStrided &&
         t.numel() * int64_t(t.itemsize()) >= threshold && t.is_non_overlapping_and_dense() && isPlainHostMemory(t);
}

// The tensor reads as zeros afterwards and takes no memory.
bool dropPages(const at::Tensor& t) {
  const Pages p = pagesOf(t);
  if (p.end <= p.first || madvise(reinterpret_cast<void*>(p.first), p.end - p.first, MADV_DONTNEED) != 0) return false;
  std::memset(reinterpret_cast<void*>(p.begin), 0, p.first - p.begin);
  std::memset(reinterpret_cast<void*>(p.end), 0, p.last - p.end);
  return true;
}

bool allZero(uintptr_t from, uintptr_t to) {
  const auto* bytes = reinterpret_cast<const char*>(from);
  return from >= to || (bytes[0] == 0 && std::memcmp(bytes, bytes + 1, to - from - 1) == 0);
}

// Whether nothing was ever written to it, so that it is all zeros. In /proc/self/pagemap a page that was never touched is
// neither present (bit 63) nor swapped (62); one that was only read is the kernel's zero page, which is present but not
// ours alone (56), as is one shared with a forked process: its content decides.
bool untouched(const at::Tensor& t) {
  if (!isLarge(t) || !at::isFloatingType(t.scalar_type())) return false;
  static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  const Pages p = pagesOf(t);
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool clean = true;
  std::vector<uint64_t> entries(8192);
  for (uintptr_t at = p.first; clean && at < p.end;) {
    const size_t n = std::min(entries.size(), size_t((p.end - at) / page));
    const ssize_t got = pread(file, entries.data(), n * 8, off_t(at / page * 8));
    if (got != ssize_t(n * 8)) clean = false;
    for (size_t i = 0; clean && i < n; ++i) {
      if ((entries[i] >> 62) == 0) continue;
      const bool shared = (entries[i] >> 63) == 1 && ((entries[i] >> 56) & 1) == 0;
      clean = shared && allZero(at + i * page, at + (i + 1) * page);
    }
    at += n * page;
  }
  close(file);
  return clean && allZero(p.begin, p.first) && allZero(p.end, p.last);
}

bool initialiseLazily(at::Tensor& self) {
  if (!isLarge(self) || !at::isFloatingType(self.scalar_type()) || !dropPages(self)) return false;
  g_lazy_bytes += uint64_t(self.numel()) * self.itemsize();
  return true;
}

at::Tensor& normal(at::Tensor& self, double mean, double std, std::optional<at::Generator> generator) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  return initialiseLazily(self) ? self : at::native::normal_(self, mean, std, std::move(generator));
}
at::Tensor& uniform(at::Tensor& self, double from, double to, std::optional<at::Generator> generator) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return initialiseLazily(self) ? self : at::native::uniform_(self, from, to, std::move(generator));
}
at::Tensor& fillScalar(at::Tensor& self, const at::Scalar& value) {
  return initialiseLazily(self) ? self : at::native::fill_(self, value);
}
at::Tensor& zero(at::Tensor& self) { return isLarge(self) && dropPages(self) ? self : at::native::zero_(self); }

// A finite number on the host, or nothing.
std::optional<double> finiteScalar(const at::Tensor& t) {
  if (t.dim() != 0 || !t.device().is_cpu() || t.is_complex()) return std::nullopt;
  const double value = t.item<double>();
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

at::Tensor& mul(at::Tensor& self, const at::Tensor& other) {
  return isLarge(self) && finiteScalar(other) && untouched(self) ? self : at::cpu::mul_(self, other);
}
at::Tensor& div(at::Tensor& self, const at::Tensor& other) {
  const bool left_out = isLarge(self) && finiteScalar(other).value_or(0.0) != 0.0 && untouched(self);
  return left_out ? self : at::cpu::div_(self, other);
}
at::Tensor& add(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const bool left_out = isLarge(self) && finiteScalar(other).value_or(1.0) == 0.0 && untouched(self);
  return left_out ? self : at::cpu::add_(self, other, alpha);
}
at::Tensor& erfinv(at::Tensor& self) { return untouched(self) ? self : at::cpu::erfinv_(self); }
at::Tensor& clamp(at::Tensor& self, const std::optional<at::Scalar>& min, const std::optional<at::Scalar>& max) {
  const bool spans_zero = (!min || min->toDouble() <= 0.0) && (!max || max->toDouble() >= 0.0);
  return spans_zero && untouched(self) ? self : at::cpu::clamp_(self, min, max);
}
at::Tensor& copy(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const bool left_out = isLarge(self) && at::isFloatingType(self.scalar_type()) && self.sizes() == src.sizes() &&
                        untouched(src) && dropPages(self);
  return left_out ? self : at::native::copy_(self, src, non_blocking);
}

const Installer install_host_memory(15, installHostMemory);

}  // namespace

void installHostMemory() {
  QuietWarnings quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("normal_", normal);
  library->impl("uniform_", uniform);
  library->impl("fill_.Scalar", fillScalar);
  library->impl("zero_", zero);
  library->impl("mul_.Tensor", mul);
  library->impl("div_.Tensor", div);
  library->impl("add_.Tensor", add);
  library->impl("erfinv_", erfinv);
  library->impl("clamp_", clamp);
  library->impl("copy_", copy);
}

uint64_t hostLazyBytes() { return g_lazy_bytes; }

}  // namespace phantom
