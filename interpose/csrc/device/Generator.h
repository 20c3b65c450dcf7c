// Random state of a device as Philox keeps it: a seed and an offset, 16 bytes.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>

#include <optional>

namespace phantom {

// Counterpart of at::CUDAGeneratorImpl. Drawing numbers advances the offset (advance()), so that states saved and
// restored around activation checkpointing compare as they would on a GPU.
class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // a multiple of 4
  uint64_t get_offset() const override { return state_->offset; }
  void set_state(const c10::TensorImpl& state) override;  // 16 bytes, or 8 from old checkpoints
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // The state object itself, shared: what CUDA graphs register.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  // calc_execution_policy of aten/src/ATen/native/cuda/DistributionTemplates.h: every thread takes numbers by fours.
  void advance(uint64_t values);

 private:
  struct State : c10::intrusive_ptr_target {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };
  VirtualGenerator* clone_impl() const override;
  c10::intrusive_ptr<State> state_;
};

const at::Generator& defaultGenerator(c10::DeviceIndex device);
// What a kernel that draws `values` numbers does to the state: `generator`, or the device's default one.
void drawNumbers(const std::optional<at::Generator>& generator, c10::DeviceIndex device, int64_t values);

}  // namespace phantom
