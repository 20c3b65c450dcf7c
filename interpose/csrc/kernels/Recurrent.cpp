// Recurrent networks as the CUDA build runs them: one cuDNN call for the whole sequence.
#include "memory/Allocator.h"
#include "operators/OperatorCall.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>

namespace phantom {
namespace {

enum CudnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };  // cudnnRNNMode_t

struct Sequence {
  at::IntArrayRef batch_sizes;  // empty: not packed
  bool batch_first = false;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> run(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx,
                                                   at::TensorList params, bool has_biases, CudnnMode mode,
                                                   int64_t layers, double dropout, bool train, bool bidirectional,
                                                   Sequence sequence) {
  int64_t hidden = hx.size(2), projection = 0;
  if (cx.defined() && cx.size(2) != hx.size(2)) {
    hidden = cx.size(2);
    projection = hx.size(2);
  }
  const int64_t per_layer = (has_biases ? 4 : 2) + (projection != 0 ? 1 : 0);
  auto out =
      at::_cudnn_rnn(input, params, per_layer, params[0].detach().reshape({-1}), hx,
                     cx.defined() ? std::optional<at::Tensor>(cx) : std::nullopt, mode, hidden, projection, layers,
                     sequence.batch_first, dropout, train, bidirectional, sequence.batch_sizes, std::nullopt);
  return {std::get<0>(out), std::get<1>(out), std::get<2>(out)};
}

void lstm(at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& input, at::TensorList hx,
          at::TensorList params, bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional,
          bool batch_first) {
  std::tie(output, hy, cy) =
      run(input, hx[0], hx[1], params, has_biases, kLstm, layers, dropout, train, bidirectional, {{}, batch_first});
}

std::vector<int64_t> batchSizes(const at::Tensor& sizes) {  // a CPU tensor by PackedSequence's contract
  TORCH_CHECK(sizes.is_cpu() && sizes.scalar_type() == c10::kLong,
              "batch_sizes of a packed sequence must be int64 on the CPU");
  const auto* data = sizes.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + sizes.numel());
}

void lstmPacked(at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& data, const at::Tensor& sizes,
                at::TensorList hx, at::TensorList params, bool has_biases, int64_t layers, double dropout, bool train,
                bool bidirectional) {
  std::tie(output, hy, cy) = run(data, hx[0], hx[1], params, has_biases, kLstm, layers, dropout, train, bidirectional,
                                 {batchSizes(sizes), false});
}

template <CudnnMode mode>
void simple(at::Tensor& output, at::Tensor& hy, const at::Tensor& input, const at::Tensor& hx, at::TensorList params,
            bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  at::Tensor none;
  std::tie(output, hy, none) =
      run(input, hx, at::Tensor(), params, has_biases, mode, layers, dropout, train, bidirectional, {{}, batch_first});
}

template <CudnnMode mode>
void simplePacked(at::Tensor& output, at::Tensor& hy, const at::Tensor& data, const at::Tensor& sizes,
                  const at::Tensor& hx, at::TensorList params, bool has_biases, int64_t layers, double dropout,
                  bool train, bool bidirectional) {
  at::Tensor none;
  std::tie(output, hy, none) = run(data, hx, at::Tensor(), params, has_biases, mode, layers, dropout, train,
                                   bidirectional, {batchSizes(sizes), false});
}

// The weights move into one buffer and become views of it.
at::Tensor flattenWeight(at::TensorList weights, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool) {
  int64_t elements = 0;
  for (const at::Tensor& w : weights) elements += w.numel();
  TORCH_CHECK(!weights.empty(), "_cudnn_rnn_flatten_weight needs weights");
  at::Tensor buffer = at::empty({elements}, weights[0].options());
  int64_t offset = 0;
  for (const at::Tensor& w : weights) {
    const auto sizes = w.sizes().vec();
    c10::TensorImpl* impl = w.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(buffer.storage());
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
    offset += w.numel();
  }
  launchNamed("aten::copy_", {buffer, buffer}, {buffer}, buffer.device());
  return buffer;
}

at::Tensor initDropoutState(double, bool, int64_t, std::optional<c10::ScalarType>, std::optional<c10::Layout>,
                            std::optional<c10::Device> device, std::optional<bool>) {
  // cudnnDropoutGetStatesSize: a generator state per resident thread, about 3 MB on current GPUs.
  return at::empty({int64_t(3) << 20},
                   at::TensorOptions().dtype(c10::kByte).device(device.value_or(c10::Device(c10::kCUDA))));
}

}  // namespace

void registerRecurrent() {
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&lstmPacked);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&simple<kGru>);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&simplePacked<kGru>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&simple<kTanh>);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&simplePacked<kTanh>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&simple<kRelu>);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&simplePacked<kRelu>);
  using c10::KernelFunction;
  registerKernel("_cudnn_rnn_flatten_weight", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&flattenWeight));
  registerKernel("_cudnn_init_dropout_state", c10::DispatchKey::CUDA,
                 KernelFunction::makeFromUnboxedRuntimeFunction(&initDropoutState));
}

}  // namespace phantom
