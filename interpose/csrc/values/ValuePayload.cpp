// The payload of a value between ranks: msgpack [dtype, numel, uniform, bytes], little-endian elements.
#include "operators/DispatchGuards.h"
#include "core/Msgpack.h"
#include "values/Values.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <utility>

namespace phantom {
namespace {

constexpr std::pair<const char*, c10::ScalarType> kNames[] = {{"uint8", c10::kByte},
                                                              {"int8", c10::kChar},
                                                              {"int16", c10::kShort},
                                                              {"int32", c10::kInt},
                                                              {"int64", c10::kLong},
                                                              {"float16", c10::kHalf},
                                                              {"float32", c10::kFloat},
                                                              {"float64", c10::kDouble},
                                                              {"complex64", c10::kComplexFloat},
                                                              {"complex128", c10::kComplexDouble},
                                                              {"bool", c10::kBool},
                                                              {"bfloat16", c10::kBFloat16},
                                                              {"uint16", c10::ScalarType::UInt16},
                                                              {"uint32", c10::ScalarType::UInt32},
                                                              {"uint64", c10::ScalarType::UInt64},
                                                              {"float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
                                                              {"float8_e5m2", c10::ScalarType::Float8_e5m2}};

const char* nameOf(c10::ScalarType dtype) {
  for (const auto& [name, type] : kNames) {
    if (type == dtype) return name;
  }
  TORCH_CHECK(false, "values of type ", dtype, " do not travel between ranks");
}

c10::ScalarType typeOf(std::string_view name) {
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  TORCH_CHECK(false, "unknown type of a value from the simulator: ", std::string(name));
}

}  // namespace

bool isUniform(const at::Tensor& value) {
  if (value.numel() <= 1) return value.numel() == 1;
  for (int64_t i = 0; i < value.dim(); ++i) {
    if (value.size(i) > 1 && value.stride(i) != 0) return false;
  }
  return true;
}

std::string packValue(const at::Tensor& cpu_value) {
  PlainDispatch plain;
  TORCH_CHECK(cpu_value.is_cpu(), "packValue takes a CPU tensor");
  const bool uniform = isUniform(cpu_value);
  const at::Tensor plain_value = cpu_value.resolve_conj().resolve_neg();
  const at::Tensor data =
      uniform ? plain_value.as_strided({1}, {1}, plain_value.storage_offset()) : plain_value.contiguous();
  Packer p;
  p.array(4);
  p.string(nameOf(data.scalar_type()));
  p.integer(cpu_value.numel());
  p.boolean(uniform);
  p.binary(data.const_data_ptr(), size_t(data.numel()) * data.itemsize());
  return std::move(p.buffer());
}

at::Tensor unpackValue(const std::string& payload) {
  PlainDispatch plain;
  Unpacker u(payload);
  TORCH_CHECK(u.array() == 4, "malformed value from the simulator: expected four fields");
  const c10::ScalarType dtype = typeOf(u.bytes());
  const int64_t numel = u.integer();
  const bool uniform = u.boolean();
  const std::string_view bytes = u.bytes();
  const int64_t elements = uniform ? 1 : numel;
  TORCH_CHECK(numel >= 0 && bytes.size() == size_t(elements) * c10::elementSize(dtype),
              "malformed value from the simulator: ", bytes.size(), " bytes for ", elements, " elements of ", dtype);
  at::Tensor out = at::detail::empty_cpu({elements}, dtype);
  if (!bytes.empty()) std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  return uniform ? out.expand({numel}) : out;
}

}  // namespace phantom
