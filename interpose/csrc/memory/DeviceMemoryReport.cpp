// What the allocator tells about itself: statistics, free memory, segments, history, private pools.
#include "memory/DeviceMemory.h"

#include "core/Config.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace phantom {

DeviceStats DeviceMemory::stats() {
  Lock lock(mutex_);
  return stats_;
}

namespace {
template <typename F>
void forEachArray(DeviceStats& s, F&& visit) {
  for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes,
                      &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes}) {
    for (auto& stat : *array) visit(stat);
  }
  visit(s.oversize_allocations);
  visit(s.oversize_segments);
}
}  // namespace

void DeviceMemory::resetPeak() {
  Lock lock(mutex_);
  peak_allocated_ = std::max(peak_allocated_, stats_.allocated_bytes[0].peak);
  peak_reserved_ = std::max(peak_reserved_, stats_.reserved_bytes[0].peak);
  forEachArray(stats_, [](auto& stat) { stat.reset_peak(); });
}

std::pair<int64_t, int64_t> DeviceMemory::lifetimePeaks() {
  Lock lock(mutex_);
  return {std::max(peak_allocated_, stats_.allocated_bytes[0].peak),
          std::max(peak_reserved_, stats_.reserved_bytes[0].peak)};
}

int64_t DeviceMemory::lifetimeOoms() {
  Lock lock(mutex_);
  return ooms_ + stats_.num_ooms;
}

void DeviceMemory::resetAccumulated() {
  Lock lock(mutex_);
  forEachArray(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  ooms_ += stats_.num_ooms;
  stats_.num_ooms = 0;
}

std::pair<size_t, size_t> DeviceMemory::memoryInfo() {
  Lock lock(mutex_);
  const size_t capacity = size_t(config().capacity_bytes);
  return {capacity > reserved_ ? capacity - reserved_ : 0, size_t(config().device.total_memory_bytes)};
}

void DeviceMemory::setFraction(double fraction) {
  Lock lock(mutex_);
  fraction_ = fraction;
  fraction_set_ = true;
}

double DeviceMemory::fraction() {
  Lock lock(mutex_);
  return fraction_;
}

std::vector<Segment> DeviceMemory::segments() {
  Lock lock(mutex_);
  std::set<const Block*, ByAddress> firsts;
  auto consider = [&](const Block* b) {
    // A segment of the snapshot starts at a segment's first block or behind unmapped pages.
    if (b->mapped && (b->prev == nullptr || !b->prev->mapped)) firsts.insert(b);
  };
  auto pool = [&](const BlockPool& p) {
    for (const Block* b : p.free) consider(b);
  };
  for (const Block* b : active_) consider(b);
  pool(small_);
  pool(large_);
  for (auto& [id, p] : private_pools_) {
    pool(p->small);
    pool(p->large);
  }
  std::map<uintptr_t, const Block*> by_address;
  for (const Block* b : firsts) by_address[b->address] = b;
  std::vector<Segment> out;
  for (auto& [address, block] : by_address) {
    Segment segment{{}, block->pool->small, block->pool->owner ? block->pool->owner->id : PoolId{0, 0}};
    for (const Block* b = block; b && b->mapped; b = b->next) segment.blocks.push_back(*b);
    out.push_back(std::move(segment));
  }
  return out;
}

void DeviceMemory::addOomObserver(OomObserver observer) {
  Lock lock(mutex_);
  oom_observers_.push_back(std::move(observer));
}

void DeviceMemory::keepHistory(bool on, size_t max_entries) {
  Lock lock(mutex_);
  keep_history_ = on;
  history_limit_ = max_entries;
  if (!on) history_.clear();
}

std::vector<TraceEvent> DeviceMemory::history() {
  Lock lock(mutex_);
  return {history_.begin(), history_.end()};
}

// ---- private pools (torch.cuda.MemPool, CUDA graphs)

void DeviceMemory::ensurePool(PoolId id) {
  Lock lock(mutex_);
  auto it = private_pools_.find(id);
  if (it == private_pools_.end()) private_pools_.emplace(id, std::make_unique<PrivatePool>(id));
  else ++it->second->users;
}

void DeviceMemory::beginAllocateToPool(PoolId id, Filter filter) {
  Lock lock(mutex_);
  for (auto& redirect : redirects_) {
    TORCH_CHECK(redirect.first != id, "beginAllocateToPool: already recording to mempool_id");
  }
  auto it = private_pools_.find(id);
  if (it == private_pools_.end()) private_pools_.emplace(id, std::make_unique<PrivatePool>(id));
  else ++it->second->users;
  // The latest redirection wins, as nested use_mem_pool expects.
  redirects_.insert(redirects_.begin(), {id, std::move(filter)});
}

void DeviceMemory::endAllocateToPool(PoolId id) {
  Lock lock(mutex_);
  for (auto it = redirects_.begin(); it != redirects_.end(); ++it) {
    if (it->first != id) continue;
    redirects_.erase(it);
    return;
  }
  TORCH_CHECK(false, "endAllocatePool: not currently recording to mempool_id");
}

void DeviceMemory::releasePool(PoolId id) {
  Lock lock(mutex_);
  auto it = private_pools_.find(id);
  TORCH_CHECK(it != private_pools_.end() && it->second->users > 0, "releasePool: no such memory pool");
  --it->second->users;  // its memory goes back with the next empty_cache
}

int DeviceMemory::poolUsers(PoolId id) {
  Lock lock(mutex_);
  auto it = private_pools_.find(id);
  return it == private_pools_.end() ? 0 : it->second->users;
}

}  // namespace phantom
