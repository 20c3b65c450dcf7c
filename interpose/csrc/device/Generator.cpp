#include "device/Generator.h"

#include "core/Config.h"
#include "core/Device.h"

#include <ATen/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace phantom {

VirtualGenerator::VirtualGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::kCUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)),
      state_(c10::make_intrusive<State>()) {}

void VirtualGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

// Not random here: two runs of a job must give the same times, and nothing but the seed's value depends on it.
uint64_t VirtualGenerator::seed() {
  set_current_seed(state_->seed * 6364136223846793005ULL + 1442695040888963407ULL);
  return state_->seed;
}

void VirtualGenerator::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
  state_->offset = offset;
}

void VirtualGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  const size_t bytes = size_t(state.numel());
  TORCH_CHECK(bytes == 16 || bytes == 8, "RNG state is wrong size");
  const auto* data = static_cast<const char*>(state.data());
  uint64_t seed = 0;
  int64_t offset = 0;
  std::memcpy(&seed, data, 8);
  if (bytes == 16) std::memcpy(&offset, data + 8, 8);
  set_current_seed(seed);
  set_offset(uint64_t(offset));
}

c10::intrusive_ptr<c10::TensorImpl> VirtualGenerator::get_state() const {
  at::Tensor out = at::detail::empty_cpu({16}, at::kByte, at::kStrided, at::kCPU, false, std::nullopt);
  auto* data = static_cast<char*>(out.mutable_data_ptr());
  std::memcpy(data, &state_->seed, 8);
  std::memcpy(data + 8, &state_->offset, 8);
  return out.getIntrusivePtr();
}

void VirtualGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  auto* other = dynamic_cast<VirtualGenerator*>(state.get());
  TORCH_CHECK(other != nullptr, "graphsafe_set_state needs the state of a CUDA generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> VirtualGenerator::graphsafe_get_state() const {
  auto out = c10::make_intrusive<VirtualGenerator>(device().index());
  out->state_ = state_;
  return out;
}

void VirtualGenerator::advance(uint64_t values) {
  constexpr uint64_t kBlock = 256, kUnroll = 4, kPerCall = 4, kThreadsPerMultiprocessor = 2048;
  const uint64_t most = uint64_t(config().device.multi_processor_count) * (kThreadsPerMultiprocessor / kBlock);
  const uint64_t grid = std::max<uint64_t>(1, std::min(most, (values + kBlock - 1) / kBlock));
  state_->offset += ((std::max<uint64_t>(values, 1) - 1) / (kBlock * grid * kUnroll) + 1) * kPerCall;
}

VirtualGenerator* VirtualGenerator::clone_impl() const {
  auto* out = new VirtualGenerator(device().index());
  *out->state_ = *state_;
  return out;
}

const at::Generator& defaultGenerator(c10::DeviceIndex device) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < config().device_count; ++i)
      made->push_back(at::make_generator<VirtualGenerator>(c10::DeviceIndex(i)));
    return made;
  }();
  if (device < 0) device = currentDevice();
  TORCH_CHECK(device < c10::DeviceIndex(all->size()), "no such device: cuda:", int(device));
  return (*all)[size_t(device)];
}

void drawNumbers(const std::optional<at::Generator>& generator, c10::DeviceIndex device, int64_t values) {
  if (values <= 0) return;
  const bool given = generator && generator->defined() && generator->device().is_cuda();
  auto* impl =
      dynamic_cast<VirtualGenerator*>((given ? *generator : defaultGenerator(device)).unsafeGetGeneratorImpl());
  TORCH_CHECK(impl != nullptr, "a CUDA generator that is not phantom's");
  std::lock_guard<std::mutex> lock(impl->mutex_);
  impl->advance(uint64_t(values));
}

}  // namespace phantom
