// Giving memory back to the simulated device: empty_cache, the retry before running out, garbage collection.
#include "memory/DeviceMemory.h"

#include "memory/AddressSpace.h"
#include "memory/Arena.h"
#include "time/Clock.h"
#include "core/Records.h"
#include "core/Config.h"
#include "memory/MemoryLog.h"
#include "time/Session.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>

#include <limits>
#include <sstream>

namespace phantom {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::format_size;
using c10::CachingAllocator::kSmallBuffer;
using c10::CachingAllocator::StatType;

void DeviceMemory::giveBack(Block* block) {
  TORCH_INTERNAL_ASSERT(!block->arena && !block->isSplit());
  stats_.num_device_free += 1;
  trace("segment_free", block->address, block->size, block->stream);
  BlockPool& pool = *block->pool;
  pool.free.erase(block);
  releaseRange(block->address);
  reserved_ -= block->size;
  if (pool.owner) --pool.owner->segments;
  count(pool, [&](size_t type) {
    stats_.segment[type].decrease(1);
    stats_.reserved_bytes[type].decrease(block->size);
  });
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_segments.decrease(1);
  delete block;
}

void DeviceMemory::releasePoolBlocks(BlockPool& pool) {
  std::vector<Block*> expandable;
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it++;
    if (block->arena) {
      // Unmapping changes the set, so that it waits for the end of the walk.
      expandable.push_back(block);
    } else if (!block->isSplit()) {
      giveBack(block);
    }
  }
  for (Block* block : expandable) {
    Arena* arena = block->arena;
    Block* first = block;
    unmap(block);
    // A wholly unmapped segment is one block again.
    for (auto it = pool.unmapped.begin(); it != pool.unmapped.end(); ++it) {
      if ((*it)->arena != arena || (*it)->size != arena->bytes()) continue;
      first = *it;
      pool.unmapped.erase(it);
      delete first;
      arenas_.erase(std::find_if(arenas_.begin(), arenas_.end(), [&](auto& a) { return a.get() == arena; }));
      break;
    }
  }
}

void DeviceMemory::releaseCached(Lock& lock, PoolId pool) {
  if (pool == PoolId{0, 0}) {
    if (!pending_.empty()) stats_.num_sync_all_streams += 1;
    processPending(lock, true);
    releasePoolBlocks(large_);
    releasePoolBlocks(small_);
  }
  for (auto it = private_pools_.begin(); it != private_pools_.end();) {
    PrivatePool& p = *it->second;
    const bool asked = pool == it->first;
    if (p.users > 0 && !asked) {
      ++it;
      continue;
    }
    releasePoolBlocks(p.small);
    releasePoolBlocks(p.large);
    it = p.users == 0 && p.segments == 0 ? private_pools_.erase(it) : std::next(it);
  }
}

void DeviceMemory::emptyCache(PoolId pool) {
  Lock lock(mutex_);
  releaseCached(lock, pool);
}

bool DeviceMemory::releaseSome(const Request& request) {
  const size_t max_split = AcceleratorAllocatorConfig::max_split_size();
  if (max_split == std::numeric_limits<size_t>::max()) return false;
  BlockPool& pool = *request.pool;
  Block key;
  key.stream = request.stream;
  key.size = std::max(request.size, max_split);
  auto it = pool.free.lower_bound(&key);
  if (it != pool.free.end() && (*it)->stream == request.stream) {
    if ((*it)->arena) return false;
    giveBack(*it);
    return true;
  }
  // No single block is large enough: several, the largest first.
  size_t released = 0;
  while (released < key.size && it != pool.free.begin()) {
    --it;
    Block* block = *it;
    if (block->stream != request.stream || block->size < max_split || block->arena || block->isSplit()) break;
    it = std::next(it);
    released += block->size;
    giveBack(block);
  }
  return released >= key.size;
}

void DeviceMemory::collectGarbage() {
  const auto threshold = size_t(AcceleratorAllocatorConfig::garbage_collection_threshold() * double(limit()));
  if (reserved_ <= threshold) return;
  const size_t target = reserved_ - threshold;
  auto age = [&](const Block* b) { return double(large_.searches - b->born_at); };
  double total_age = 0;
  int left = 0;
  for (const Block* b : large_.free) {
    if (b->isSplit() || b->arena) continue;
    total_age += age(b);
    ++left;
  }
  size_t reclaimed = 0;
  for (bool freed = true; reclaimed < target && freed && left > 0;) {
    const double older_than = total_age / left;
    freed = false;
    for (auto it = large_.free.begin(); it != large_.free.end();) {
      Block* block = *it++;
      if (block->isSplit() || block->arena || age(block) < older_than) continue;
      freed = true;
      reclaimed += block->size;
      total_age -= age(block);
      --left;
      giveBack(block);
    }
  }
}

void DeviceMemory::outOfMemory(const Request& request, Lock& lock) {
  const size_t total = size_t(config().device.total_memory_bytes);
  const size_t capacity = size_t(config().capacity_bytes);
  const size_t device_free = capacity > reserved_ ? capacity - reserved_ : 0;
  trace("oom", device_free, request.size, request.stream);
  stats_.num_ooms += 1;
  const size_t allocated = size_t(stats_.allocated_bytes[size_t(StatType::AGGREGATE)].current);
  const size_t reserved = size_t(stats_.reserved_bytes[size_t(StatType::AGGREGATE)].current);
  size_t in_private_pools = 0;
  for (auto& [id, pool] : private_pools_) {
    for (const Block* b : pool->small.free) in_private_pools += b->size;
    for (const Block* b : pool->large.free) in_private_pools += b->size;
  }
  std::ostringstream text;
  text << "CUDA out of memory. Tried to allocate " << format_size(request.segment) << ". GPU " << int(device_)
       << " has a total capacity of " << format_size(total) << " of which " << format_size(device_free)
       << " is free. Including non-PyTorch memory, this process has " << format_size(total - device_free)
       << " memory in use. ";
  const auto allowed = size_t(fraction_ * double(total));
  if (fraction_set_) text << format_size(allowed) << " allowed; ";
  text << "Of the allocated memory " << format_size(allocated + in_private_pools) << " is allocated by PyTorch, ";
  if (in_private_pools > 0)
    text << "with " << format_size(in_private_pools) << " allocated in private pools (e.g., CUDA Graphs), ";
  text << "and " << format_size(reserved - allocated - in_private_pools) << " is reserved by PyTorch but unallocated."
       << " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to"
       << " avoid fragmentation.  See documentation for Memory Management"
       << "  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
       << "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
  const auto observers = oom_observers_;
  lock.unlock();  // observers may need the GIL
  const auto holders = holdersAtOom(device_);
  record([&](Packer& p) {
    wire::OutOfMemory{.device = device_,
                      .requested_bytes = int64_t(request.segment),
                      .capacity_bytes = int64_t(capacity),
                      .allocated_bytes = int64_t(allocated),
                      .reserved_bytes = int64_t(reserved),
                      .now_ps = thisThreadClock().now_ps.load(),
                      .holders = {holders.begin(), holders.end()}}
        .write(p);
  });
  for (const auto& observer : observers) {
    observer(device_, int64_t(request.segment), int64_t(fraction_set_ ? allowed : total), int64_t(device_free));
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

// ---- expandable segments

Block* DeviceMemory::findExpandable(const Request& request) {
  auto usable = [](const Block* b) { return b && !b->allocated && b->pending_uses == 0 && b->used_on.empty(); };
  auto roomy = [&](const Block* b) {
    size_t bytes = 0;
    while (bytes < request.size && usable(b)) {
      bytes += b->size;
      b = b->next;
    }
    return bytes >= request.size;
  };
  BlockPool& pool = *request.pool;
  Block key;
  key.stream = request.stream;
  for (auto it = pool.unmapped.lower_bound(&key); it != pool.unmapped.end() && (*it)->stream == request.stream; ++it) {
    Block* block = *it;
    if (usable(block->prev)) block = block->prev;
    if (roomy(block)) return block;
  }
  // Address space for 1 1/8 of the device, so that pages can move to the end of the segment.
  const size_t total = size_t(config().device.total_memory_bytes);
  arenas_.push_back(std::make_unique<Arena>(
      device_, total + total / 8, pool.small ? kSmallBuffer : AcceleratorAllocatorConfig::large_segment_size()));
  auto* block = new Block();
  block->device = device_;
  block->stream = request.stream;
  block->size = arenas_.back()->bytes();
  block->address = arenas_.back()->address;
  block->pool = &pool;
  block->arena = arenas_.back().get();
  block->mapped = false;
  pool.unmapped.insert(block);
  return block;
}

bool DeviceMemory::grow(Request& request) {
  Block* block = findExpandable(request);
  if (!block->mapped && !map(block, std::min(block->size, request.size))) return false;
  while (block->size < request.size) {
    Block* next = block->next;
    if (!map(next, std::min(request.size - block->size, next->size))) return false;
    block = next;  // it has swallowed the free block before it
  }
  request.pool->free.erase(block);
  request.block = block;
  return true;
}

bool DeviceMemory::map(Block* block, size_t bytes) {
  Arena& arena = *block->arena;
  const size_t first = arena.firstPage(block->address), end = arena.endPage(block->address + bytes);
  const size_t mapped = (end - first) * arena.page_bytes;
  if (reserved_ + mapped > limit()) return false;
  for (size_t page = first; page < end; ++page) arena.pages[page] = true;
  BlockPool& pool = *block->pool;
  pool.unmapped.erase(block);
  block->mapped = true;
  if (mapped < block->size) {
    auto* rest = new Block(*block);
    rest->mapped = false;
    rest->size = block->size - mapped;
    rest->address = block->address + mapped;
    rest->prev = block;
    if (rest->next) rest->next->prev = rest;
    block->next = rest;
    block->size = mapped;
    pool.unmapped.insert(rest);
  }
  if (pool.owner) ++pool.owner->segments;
  merge(block, block->prev, pool);
  merge(block, block->next, pool);
  block->born_at = pool.searches;
  pool.free.insert(block);
  reserved_ += mapped;
  count(pool, [&](size_t type) { stats_.reserved_bytes[type].increase(mapped); });
  stats_.num_device_alloc += 1;
  trace("segment_map", block->address, mapped, block->stream);
  return true;
}

void DeviceMemory::unmap(Block* block) {
  Arena& arena = *block->arena;
  BlockPool& pool = *block->pool;
  // Only whole pages inside the block.
  const size_t first = arena.endPage(block->address), end = arena.firstPage(block->address + block->size);
  if (end <= first) return;
  const uintptr_t from = arena.address + first * arena.page_bytes;
  const size_t bytes = (end - first) * arena.page_bytes;
  for (size_t page = first; page < end; ++page) arena.pages[page] = false;
  pool.free.erase(block);
  auto piece = [&](uintptr_t address, size_t size, Block* before, Block* after) {
    auto* made = new Block(*block);
    made->address = address;
    made->size = size;
    made->prev = before;
    made->next = after;
    if (before) before->next = made;
    if (after) after->prev = made;
    pool.free.insert(made);
  };
  if (from > block->address) piece(block->address, from - block->address, block->prev, block);
  const uintptr_t block_end = block->address + block->size;
  if (block_end > from + bytes) piece(from + bytes, block_end - from - bytes, block, block->next);
  block->address = from;
  block->size = bytes;
  block->mapped = false;
  merge(block, block->prev, pool);
  merge(block, block->next, pool);
  pool.unmapped.insert(block);
  reserved_ -= bytes;
  if (pool.owner) --pool.owner->segments;
  count(pool, [&](size_t type) { stats_.reserved_bytes[type].decrease(bytes); });
  stats_.num_device_free += 1;
  trace("segment_unmap", from, bytes, block->stream);
}

}  // namespace phantom
