// Values that virtual tensors carry: CPU shadows of small or host-made tensors, uniform fills, pending results.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace phantom {

// The value of `tensor` as a CPU tensor of the same sizes, if it is known now. Never waits.
std::optional<at::Tensor> knownValue(const at::Tensor& tensor);
bool hasValue(const at::Tensor& tensor);  // known now or pending
bool valuePending(const at::Tensor& tensor);
void setValue(const at::Tensor& tensor, const at::Tensor& cpu_value);
void setRoutedValue(const at::Tensor& tensor, const at::Tensor& cpu_value);  // what a router chose
void dropValue(const at::Tensor& tensor);                                    // what it holds is not known from now on

// The value of `tensor` will be what `fulfil` is called with (nullopt: unknown). Operators that touch it are deferred.
using Fulfil = std::function<void(std::optional<at::Tensor> cpu_value)>;
Fulfil setPending(const at::Tensor& tensor);
// Calls `then` once the value of `tensor` as of now is known (at once if it is; nullopt if unknown). Later writes to the
// tensor do not change what `then` sees.
void whenKnown(const at::Tensor& tensor, std::function<void(std::optional<at::Tensor>)> then);
// Waits for a pending value (a host read). The caller has synchronised with the stream in virtual time.
std::optional<at::Tensor> awaitValue(const at::Tensor& tensor);

bool isUniform(const at::Tensor& value);  // one element in memory stands for all

// Payload format of the wire: [dtype, numel, uniform, bytes].
std::string packValue(const at::Tensor& cpu_value);
at::Tensor unpackValue(const std::string& payload);  // 1-d, on the CPU

// What a read of an unknown value gives, counted with its source line. `what` e.g. "item". Warns once per line if it is
// an integer.
at::Tensor healthyValue(const at::Tensor& like, const char* what);
std::map<std::string, uint64_t> unknownReads();

void setHealthyStep(int64_t step);  // floats read 1 + 1/(1 + step)

}  // namespace phantom
