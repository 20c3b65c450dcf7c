// Values on their way to host memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace phantom {

// Fills a CPU tensor with the value of a virtual one (waits if it is pending), else with what a read of an unknown value
// gives: healthy numbers up to 64 KiB, untouched zero pages above.
void fillHost(const at::Tensor& host, const at::Tensor& source, const char* what);
// The same for a copy that nobody has waited for yet; done at the latest by settleHostCopies().
void fillHostLater(const at::Tensor& host, const at::Tensor& source, c10::DeviceIndex device);
// Every synchronisation calls this after it has waited: what was copied without blocking is there now.
void settleHostCopies();

// A host read of a value in which a guess took part counts like a read of an unknown one.
void countGuessedRead(const at::Tensor& tensor, const char* what);
// A result's shape depends on a value that is unknown: counted and warned about.
void countGuessedShape(const char* what);
// Makes all of a CPU tensor's memory read as zeros, without touching its whole pages where that is possible.
void zeroHostMemory(const at::Tensor& host);

}  // namespace phantom
