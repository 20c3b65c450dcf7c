// Device memory as PyTorch's caching allocator would hand it out, over address space without pages.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>

namespace at {
class Tensor;
}

namespace phantom {

struct Block;  // a piece of a segment, memory/Allocator.cpp

// What hangs behind the DataPtr of every virtual storage (DataPtr::get_context()).
struct Allocation {
  void* address = nullptr;
  size_t bytes = 0;  // as asked for
  c10::DeviceIndex device = 0;
  Block* block = nullptr;
  c10::intrusive_ptr<c10::intrusive_ptr_target>
      value;  // the storage's CPU shadow, owned by values/Values.cpp; may be null
};

c10::Allocator* deviceAllocator();
// Null for a CPU, meta or empty storage.
Allocation* allocationOf(const c10::Storage& storage);
Allocation* allocationOf(const at::Tensor& tensor);
c10::DataPtr allocateOn(c10::DeviceIndex device, size_t bytes);  // on that device's current stream
// Gives a storage over memory that nobody frees the block it lies in, so that it is freed with the storage.
void adoptBlock(c10::StorageImpl& storage, Block* block, c10::DeviceIndex device);
bool ownsBlock(const c10::StorageImpl& storage);
// What a kernel takes for itself and gives back: counts towards peak and reserved memory.
void touchScratch(c10::DeviceIndex device, size_t bytes);
// The persistent cuBLAS workspace of (device, stream), taken on the first matrix product there.
void ensureCublasWorkspace(c10::DeviceIndex device, c10::StreamId stream);
size_t cublasWorkspaceBytes();
void setCublasWorkspaceBytes(size_t bytes);  // 0: back to the default
void clearCublasWorkspaces();
void recordStream(const c10::DataPtr& ptr, c10::DeviceIndex device, c10::StreamId stream);

}  // namespace phantom
