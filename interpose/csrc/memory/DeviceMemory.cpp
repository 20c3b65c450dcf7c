#include "memory/DeviceMemory.h"

#include "memory/Arena.h"
#include "memory/AddressSpace.h"
#include "time/Clock.h"
#include "core/Config.h"
#include "memory/MemoryLog.h"
#include "time/Session.h"
#include "time/Timeline.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/llvmMathExtras.h>

#include <limits>

namespace phantom {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::kMinBlockSize;
using c10::CachingAllocator::kMinLargeAlloc;
using c10::CachingAllocator::kRoundLarge;
using c10::CachingAllocator::kSmallBuffer;
using c10::CachingAllocator::kSmallSize;

namespace {
int64_t allocatedBytes(const DeviceStats& stats) {
  return stats.allocated_bytes[size_t(c10::CachingAllocator::StatType::AGGREGATE)].current;
}
}  // namespace

size_t roundedSize(size_t bytes) {
  if (bytes < kMinBlockSize) return kMinBlockSize;
  const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions > 1 && bytes > kMinBlockSize * divisions) {
    // Between two powers of two there are `divisions` steps; up to the next of them.
    if (c10::llvm::isPowerOf2_64(bytes)) return bytes;
    const size_t floor = c10::llvm::PowerOf2Floor(bytes);
    const size_t step = floor >> (63 - c10::llvm::countLeadingZeros(uint64_t(divisions)));
    if (step == 0) return floor << 1;
    const size_t down = bytes & ~(step - 1);
    return down == bytes ? bytes : down + step;
  }
  return kMinBlockSize * ((bytes + kMinBlockSize - 1) / kMinBlockSize);
}

size_t segmentSize(size_t rounded) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return AcceleratorAllocatorConfig::large_segment_size();
  return kRoundLarge * ((rounded + kRoundLarge - 1) / kRoundLarge);
}

DeviceMemory::DeviceMemory(c10::DeviceIndex device) : device_(device) {
  const size_t max_split = AcceleratorAllocatorConfig::max_split_size();
  stats_.max_split_size = max_split == std::numeric_limits<size_t>::max() ? -1 : int64_t(max_split);
}

size_t DeviceMemory::limit() const {
  const size_t capacity = size_t(config().capacity_bytes);
  if (!fraction_set_) return capacity;
  return std::min(capacity, size_t(fraction_ * double(config().device.total_memory_bytes)));
}

void DeviceMemory::trace(const char* action, uintptr_t address, size_t size, c10::StreamId stream) {
  if (!keep_history_) return;
  const Picoseconds now_ps = thisThreadHasClock() ? thisThreadClock().now_ps.load(std::memory_order_relaxed) : 0;
  history_.push_back({action, address, size, stream, now_ps});
  while (history_.size() > history_limit_) history_.pop_front();
}

BlockPool& DeviceMemory::poolFor(size_t size, c10::StreamId stream) {
  for (auto& [id, filter] : redirects_) {
    if (!filter(stream)) continue;
    PrivatePool& pool = *private_pools_.at(id);
    return size <= kSmallSize ? pool.small : pool.large;
  }
  return size <= kSmallSize ? small_ : large_;
}

Block* DeviceMemory::allocate(size_t bytes, c10::StreamId stream) {
  Lock lock(mutex_);
  Request request{stream, roundedSize(bytes), 0, nullptr};
  request.pool = &poolFor(request.size, stream);
  request.segment = segmentSize(request.size);
  if (takeFree(request)) return hand(request, bytes);
  // PyTorch looks at the events of other streams in every call. Here the answer may have to come from the simulator,
  // so that it is asked for only when the block is needed: before the device would be asked for more.
  if (!capturing_ && processPending(lock, false) && takeFree(request)) return hand(request, bytes);
  if (fraction_set_ && AcceleratorAllocatorConfig::garbage_collection_threshold() > 0.0) collectGarbage();
  bool found = newSegment(request, false) || (releaseSome(request) && newSegment(request, false));
  if (!found && !capturing_) {
    releaseCached(lock, {0, 0});
    found = newSegment(request, true);
  }
  if (!found) outOfMemory(request, lock);
  return hand(request, bytes);
}

bool DeviceMemory::takeFree(Request& request) {
  BlockPool& pool = *request.pool;
  ++pool.searches;
  Block key;
  key.stream = request.stream;
  key.size = request.size;
  auto it = pool.free.lower_bound(&key);
  if (it == pool.free.end() || (*it)->stream != request.stream) return false;
  if ((*it)->arena != nullptr) {
    if (AcceleratorAllocatorConfig::use_expandable_segments()) {
      // Best fit counts what a block could grow to, so that the end of a segment is kept for large requests.
      auto expandable = [](const Block* b) { return b->size + (b->next && !b->next->mapped ? b->next->size : 0); };
      auto next = std::next(it);
      while ((*it)->arena && next != pool.free.end() && (*next)->stream == request.stream &&
             expandable(*next) < expandable(*it)) {
        it = next++;
      }
    } else {
      do { ++it; } while (it != pool.free.end() && (*it)->arena && (*it)->stream == request.stream);
      if (it == pool.free.end() || (*it)->stream != request.stream) return false;
    }
  }
  const size_t max_split = AcceleratorAllocatorConfig::max_split_size();
  if (request.size < max_split && (*it)->size >= max_split) return false;
  if (request.size >= max_split &&
      (*it)->size >= request.size + AcceleratorAllocatorConfig::max_non_split_rounding_size()) {
    return false;
  }
  request.block = *it;
  pool.free.erase(it);
  return true;
}

bool DeviceMemory::newSegment(Request& request, bool retry) {
  if (retry) stats_.num_alloc_retries += 1;
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    if (fraction_set_ && reserved_ + request.segment > limit()) return false;
    return grow(request);
  }
  const size_t size = request.segment;
  if (reserved_ + size > limit()) return false;
  auto* block = new Block();
  block->device = device_;
  block->stream = request.stream;
  block->size = size;
  block->address = reserveRange(device_, size);
  block->pool = request.pool;
  reserved_ += size;
  if (request.pool->owner) ++request.pool->owner->segments;
  count(*request.pool, [&](size_t type) {
    stats_.segment[type].increase(1);
    stats_.reserved_bytes[type].increase(size);
  });
  if (size >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_segments.increase(1);
  stats_.num_device_alloc += 1;
  trace("segment_alloc", block->address, size, request.stream);
  request.block = block;
  return true;
}

Block* DeviceMemory::hand(Request& request, size_t bytes) {
  Block* block = request.block;
  BlockPool& pool = *request.pool;
  const size_t rest = block->size - request.size;
  const bool split = pool.small || AcceleratorAllocatorConfig::use_expandable_segments()
                         ? rest >= kMinBlockSize
                         : request.size < AcceleratorAllocatorConfig::max_split_size() && rest > kSmallSize;
  const bool was_split = block->isSplit();
  if (split) {
    Block* remaining = block;
    block = new Block();
    block->device = device_;
    block->stream = request.stream;
    block->size = request.size;
    block->address = remaining->address;
    block->pool = &pool;
    block->arena = remaining->arena;
    block->prev = remaining->prev;
    if (block->prev) block->prev->next = block;
    block->next = remaining;
    remaining->prev = block;
    remaining->address += request.size;
    remaining->size -= request.size;
    remaining->born_at = pool.searches;
    pool.free.insert(remaining);
    if (!block->arena) {
      count(pool, [&](size_t type) {
        if (was_split) {
          stats_.inactive_split_bytes[type].decrease(block->size);
        } else {
          stats_.inactive_split_bytes[type].increase(remaining->size);
          stats_.inactive_split[type].increase(1);
        }
      });
    }
  } else if (was_split && !block->arena) {
    count(pool, [&](size_t type) {
      stats_.inactive_split_bytes[type].decrease(block->size);
      stats_.inactive_split[type].decrease(1);
    });
  }
  block->allocated = true;
  block->requested = bytes;
  active_.insert(block);
  trace("alloc", block->address, bytes, block->stream);
  count(pool, [&](size_t type) {
    stats_.allocation[type].increase(1);
    stats_.allocated_bytes[type].increase(block->size);
    stats_.active[type].increase(1);
    stats_.active_bytes[type].increase(block->size);
    stats_.requested_bytes[type].increase(bytes);
  });
  memoryAllocated(device_, block->address, block->size, allocatedBytes(stats_), int64_t(reserved_));
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_allocations.increase(1);
  return block;
}

void DeviceMemory::free(Block* block) {
  Lock lock(mutex_);
  block->allocated = false;
  count(*block->pool, [&](size_t type) {
    stats_.allocation[type].decrease(1);
    stats_.allocated_bytes[type].decrease(block->size);
  });
  memoryFreed(device_, block->address, block->size, allocatedBytes(stats_), int64_t(reserved_));
  trace("free_requested", block->address, block->requested, block->stream);
  if (block->size >= AcceleratorAllocatorConfig::max_split_size()) stats_.oversize_allocations.decrease(1);
  if (block->used_on.empty()) {
    freeBlock(block);
  } else if (capturing_) {
    after_capture_.push_back(block);
  } else {
    freeLater(block);
  }
}

void DeviceMemory::freeBlock(Block* block) {
  trace("free_completed", block->address, block->requested, block->stream);
  BlockPool& pool = *block->pool;
  const size_t size = block->size;
  int64_t blocks = 0, bytes = 0;  // change of what is inactive and split
  for (Block* neighbour : {block->prev, block->next}) {
    const size_t merged = merge(block, neighbour, pool);
    if (merged > 0) {
      blocks -= 1;
      bytes -= int64_t(merged);
    }
  }
  active_.erase(block);
  block->born_at = pool.searches;
  pool.free.insert(block);
  if (block->isSplit()) {
    blocks += 1;
    bytes += int64_t(block->size);
  }
  auto shift = [](c10::CachingAllocator::Stat& stat, int64_t by) {
    if (by > 0) stat.increase(size_t(by));
    if (by < 0) stat.decrease(size_t(-by));
  };
  count(pool, [&](size_t type) {
    if (!block->arena) {  // free pages of an expandable segment can always be returned
      shift(stats_.inactive_split[type], blocks);
      shift(stats_.inactive_split_bytes[type], bytes);
    }
    stats_.active[type].decrease(1);
    stats_.active_bytes[type].decrease(size);
    stats_.requested_bytes[type].decrease(block->requested);
  });
}

size_t DeviceMemory::merge(Block* into, Block* from, BlockPool& pool) {
  if (!from || from->allocated || from->pending_uses > 0 || !from->used_on.empty() || into->mapped != from->mapped)
    return 0;
  // The key of a block in its set must not change while it is there; `into` is outside every set here.
  if (from->mapped) pool.free.erase(from);
  else pool.unmapped.erase(from);
  if (into->prev == from) {
    into->address = from->address;
    into->prev = from->prev;
    if (into->prev) into->prev->next = into;
  } else {
    into->next = from->next;
    if (into->next) into->next->prev = into;
  }
  const size_t size = from->size;
  into->size += size;
  delete from;
  return size;
}

void DeviceMemory::recordStream(Block* block, c10::StreamId stream) {
  Lock lock(mutex_);
  if (stream == block->stream) return;
  auto& used = block->used_on;
  if (std::find(used.begin(), used.end(), stream) == used.end()) used.push_back(stream);
}

void DeviceMemory::freeLater(Block* block) {
  std::vector<c10::StreamId> streams;
  streams.swap(block->used_on);
  std::sort(streams.begin(), streams.end());
  for (const c10::StreamId stream : streams) {
    ++block->pending_uses;
    pending_[stream].push_back({streamTail(device_, stream), block});
  }
}

// Whether a block became free. The lock is given up while the simulator is asked: waiting needs the GIL back at its end,
// and another thread may hold the GIL and wait for the lock.
bool DeviceMemory::processPending(Lock& lock, bool wait) {
  if (pending_.empty()) return false;
  auto taken = std::move(pending_);
  pending_.clear();
  lock.unlock();
  std::vector<Block*> passed;
  std::exception_ptr failure;
  for (auto& [stream, uses] : taken) {
    try {
      while (!uses.empty()) {
        if (wait) synchronize(uses.front().tail, "the allocator frees blocks used on several streams");
        else if (!query(uses.front().tail)) break;
        passed.push_back(uses.front().block);
        uses.pop_front();
      }
    } catch (...) {
      failure = std::current_exception();
      break;
    }
  }
  lock.lock();
  for (auto& [stream, uses] : taken) {
    if (uses.empty()) continue;
    auto& queue = pending_[stream];
    queue.insert(queue.begin(), uses.begin(), uses.end());
  }
  bool freed = false;
  for (Block* block : passed) {
    if (--block->pending_uses == 0) {
      freeBlock(block);
      freed = true;
    }
  }
  if (failure) std::rethrow_exception(failure);
  return freed;
}

void DeviceMemory::setCapturing(bool capturing) {
  Lock lock(mutex_);
  capturing_ = capturing;
  if (capturing) return;
  for (Block* block : after_capture_) freeLater(block);
  after_capture_.clear();
}

}  // namespace phantom
