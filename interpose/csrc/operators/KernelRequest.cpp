#include "operators/KernelRequest.h"

#include <ATen/Context.h>

#include "time/Accounting.h"
#include "memory/Allocator.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "core/Device.h"
#include "operators/Dispatch.h"
#include "operators/OperatorCall.h"
#include "core/DtypeName.h"
#include "core/Msgpack.h"
#include "time/OffClock.h"
#include "time/Timeline.h"

#include <ATen/EmptyTensor.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace phantom {
namespace {

std::mutex g_callback_mutex;
std::shared_ptr<const CostCallback> g_callback;
std::atomic<uint64_t> g_cost_generation{1};

void packInts(Packer& p, c10::IntArrayRef values) {
  p.array(values.size());
  for (int64_t value : values) p.integer(value);
}

void packTensor(Packer& p, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                std::string_view device) {
  p.array(5);
  p.string("T");
  p.string(dtypeName(dtype));
  packInts(p, sizes);
  packInts(p, strides);
  p.string(device);
}

void packTensor(Packer& p, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided) p.nil();
  else packTensor(p, tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.is_cuda() ? "cuda" : "cpu");
}

void packValue(Packer& p, const c10::IValue& value) {
  if (value.isTensor()) {
    packTensor(p, value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    p.array(2);
    p.string("L");
    p.array(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isNone()) p.nil();
      else packTensor(p, element.toTensor());
    }
  } else if (value.isIntList()) {
    p.array(2);
    p.string("I");
    packInts(p, value.toIntVector());
  } else if (value.isInt()) {
    p.integer(value.toInt());
  } else if (value.isDouble()) {
    p.real(value.toDouble());
  } else if (value.isBool()) {
    p.boolean(value.toBool());
  } else if (value.isString()) {
    p.string(value.toStringView());
  } else if (value.isNone() || value.isGenerator()) {
    p.nil();
  } else {
    p.array(2);
    p.string("?");
    p.string(value.tagKind());
  }
}

void packOffsets(Packer& p, const std::vector<KnownOffsets>& offsets) {
  p.string("offsets");
  p.array(offsets.size());
  for (const KnownOffsets& known : offsets) {
    p.array(2);
    p.integer(known.argument);
    packInts(p, known.values);
  }
}

void packHead(Packer& p, std::string_view op, size_t arguments, bool with_tf32,
              const std::vector<KnownOffsets>& offsets = {}) {
  p.array(1);
  p.map(4);
  p.string("op");
  p.string(op);
  p.string("sm");
  p.map((with_tf32 ? 2 : 0) + (offsets.empty() ? 0 : 1));
  if (with_tf32) {
    const uint64_t tf32 = tf32State();
    p.string("tf32");
    p.boolean(tf32 & 1);
    p.string("conv_tf32");
    p.boolean(tf32 & 2);
  }
  if (!offsets.empty()) packOffsets(p, offsets);
  p.string("args");
  p.array(arguments);
}

void packOutput(Packer& p, const Call& call, const MetadataEntry& entry, const OutputSpec& spec) {
  if (spec.kind == OutputKind::kUndefined) {
    p.nil();
  } else if (spec.kind == OutputKind::kInput) {
    const at::Tensor& tensor = *call.inputs[spec.source].tensor;
    for (const InputChange& change : entry.changes) {
      if (change.input != spec.source) continue;  // `out=` that the operator resizes: what it will be
      packTensor(p, tensor.scalar_type(), change.sizes, change.strides, tensor.is_cuda() ? "cuda" : "cpu");
      return;
    }
    packTensor(p, tensor);
  } else packTensor(p, spec.dtype, spec.sizes, spec.strides, spec.kind == OutputKind::kHost ? "cpu" : "cuda");
}

std::string packRequest(const Call& call, const MetadataEntry& entry) {
  Packer p;
  packHead(p, call.info.name, call.count, call.info.fp32_by_tf32, call.offsets);
  for (size_t i = 0; i < call.count; ++i) packValue(p, call.argument(i));
  p.string("outs");
  p.array(entry.returns.size());
  for (const ReturnSpec& spec : entry.returns) {
    if (spec.kind == ReturnSpec::Kind::kConstant) {
      packValue(p, spec.constant);
    } else if (spec.kind == ReturnSpec::Kind::kTensor) {
      packOutput(p, call, entry, entry.outputs[spec.first]);
    } else {
      p.array(2);
      p.string("L");
      p.array(spec.count);
      for (uint32_t i = 0; i < spec.count; ++i) packOutput(p, call, entry, entry.outputs[spec.first + i]);
    }
  }
  return std::move(p.buffer());
}

}  // namespace

void priceRequest(const std::string& op, const std::string& request, MetadataEntry& entry) {
  entry.cost_generation = g_cost_generation.load();
  const CostAnswer answer = askCost(request);
  if (answer.source == "none") {
    entry.metadata_only = true;
    return;
  }
  KernelCost& cost = entry.cost;
  cost.launches = uint32_t(std::max<int64_t>(answer.launches, 1));
  cost.launch_ps = answer.duration_ps / cost.launches;
  cost.remainder_ps = answer.duration_ps - cost.launch_ps * cost.launches;
  cost.scratch_bytes = answer.scratch_bytes;
  cost.ideal_ps = answer.ideal_ps;
  cost.matrix_product = cost.matrix_product || answer.klass == "gemm";
  cost.kernel = internKernel(op, answer.klass, answer.source);
}

std::string packKernelRequest(std::string_view op, c10::ArrayRef<c10::IValue> arguments,
                              c10::ArrayRef<c10::IValue> outputs) {
  Packer p;
  packHead(p, op, arguments.size(), false);
  for (const c10::IValue& argument : arguments) packValue(p, argument);
  p.string("outs");
  p.array(outputs.size());
  for (const c10::IValue& output : outputs) packValue(p, output);
  return std::move(p.buffer());
}

CostAnswer unpackKernelReply(const std::string& reply) {
  Unpacker u(reply);
  CostAnswer answer;
  const size_t kernels = u.array(), fields = kernels == 1 ? u.array() : 0;
  if (fields != 5 && fields != 6) throw std::runtime_error("the cost model's reply does not describe one kernel");
  answer.duration_ps = u.integer();
  answer.source = std::string(u.bytes());
  answer.klass = std::string(u.bytes());
  answer.launches = u.integer();
  answer.scratch_bytes = u.integer();
  if (fields == 6) answer.ideal_ps = u.integer();
  if (answer.duration_ps < 0 || answer.scratch_bytes < 0)
    throw std::runtime_error("the cost model's reply is negative");
  return answer;
}

void setCostCallback(CostCallback callback) {
  std::lock_guard<std::mutex> hold(g_callback_mutex);
  g_callback = callback ? std::make_shared<const CostCallback>(std::move(callback)) : nullptr;
  g_cost_generation.fetch_add(1);
}

uint64_t costGeneration() { return g_cost_generation.load(std::memory_order_relaxed); }

CostAnswer askCost(const std::string& request) {
  std::shared_ptr<const CostCallback> callback;
  {
    std::lock_guard<std::mutex> hold(g_callback_mutex);
    callback = g_callback;
  }
  if (!callback) return CostAnswer();
  return unpackKernelReply((*callback)(request));
}

void priceKernel(const Call& call, MetadataEntry& entry) {
  entry.cost_generation = costGeneration();
  entry.cost.matrix_product = call.info.matrix_product;
  if (entry.metadata_only) return;
  priceRequest(call.info.name, packRequest(call, entry), entry);
}

void launch(const MetadataEntry& entry, c10::Device device) {
  launchOn(entry, device.index(), currentStream(device.index()));
}

void launchOn(const MetadataEntry& entry, c10::DeviceIndex device, c10::StreamId stream) {
  if (entry.metadata_only) {
    chargeHost(HostWork::kView);
    hookLeft();
    return;
  }
  chargeHost(HostWork::kOperator);
  const KernelCost& cost = entry.cost;
  if (cost.ideal_ps > 0 && !offClock()) countIdeal(cost.ideal_ps);
  if (cost.matrix_product) ensureCublasWorkspace(device, stream);
  if (cost.scratch_bytes > 0) touchScratch(device, size_t(cost.scratch_bytes));
  for (uint32_t i = 1; i < cost.launches; ++i) launchKernel(device, stream, cost.launch_ps, cost.kernel);
  launchKernel(device, stream, cost.launch_ps + cost.remainder_ps, cost.kernel);
  hookLeft();
}

void launchNamed(const char* name, const torch::jit::Stack& arguments, c10::ArrayRef<at::Tensor> outputs,
                 c10::Device device) {
  MetadataHasher hash;
  hash.add(reinterpret_cast<uint64_t>(name));
  auto hash_tensor = [&](const at::Tensor& t) {
    hash.add(t.defined() ? uint64_t(t.scalar_type()) << 8 | uint64_t(t.device().type()) : 1);
    if (!t.defined()) return;
    for (int64_t size : t.sizes()) hash.add(uint64_t(size));
    for (int64_t stride : t.strides()) hash.add(uint64_t(stride) | uint64_t(1) << 63);
  };
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) hash_tensor(argument.toTensor());
    else if (argument.isInt()) hash.add(uint64_t(argument.toInt()));
    else if (argument.isBool()) hash.add(argument.toBool() ? 3 : 2);
    else hash.add(4);
  }
  for (const at::Tensor& t : outputs) hash_tensor(t);
  EntryPtr entry = findMetadata(hash.key());
  if (!entry || entry->cost_generation != costGeneration()) {
    entry = c10::make_intrusive<MetadataEntry>();
    std::vector<c10::IValue> outs(outputs.begin(), outputs.end());
    priceRequest(name, packKernelRequest(name, arguments, outs), *entry);
    storeMetadata(hash.key(), entry);
  }
  launch(*entry, device);
}

uint64_t tf32State() {
  using at::Float32Backend, at::Float32Op, at::Float32Precision;
  const auto& context = at::globalContext();
  const auto product = context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL);
  const auto convolution = context.float32Precision(Float32Backend::CUDA, Float32Op::CONV);
  return uint64_t(product == Float32Precision::TF32) |
         (uint64_t(convolution == Float32Precision::TF32 || convolution == Float32Precision::DEFAULT) << 1);
}

}  // namespace phantom
