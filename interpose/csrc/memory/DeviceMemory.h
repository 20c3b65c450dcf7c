// The policy of PyTorch's CUDA caching allocator for one device: rounding, pools, splitting, best fit, merging, release.
//
// Follows c10/cuda/CUDACachingAllocator.cpp and the notes "CUDA semantics: Memory management" of PyTorch's
// documentation; segments are address space only and the device holds config().capacity_bytes.
#pragma once

#include "core/Time.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace phantom {

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
using PoolId = c10::MempoolId_t;

struct BlockPool;
struct Arena;  // an expandable segment

struct Block {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  size_t size = 0;
  size_t requested = 0;
  uintptr_t address = 0;
  BlockPool* pool = nullptr;
  Block* prev = nullptr;  // neighbours within the segment
  Block* next = nullptr;
  Arena* arena = nullptr;
  bool allocated = false;
  bool mapped = true;                  // false: address space of an expandable segment without memory
  int pending_uses = 0;                // events of other streams that must pass before reuse
  int64_t born_at = 0;                 // pool->searches when it was freed, for garbage collection
  std::vector<c10::StreamId> used_on;  // record_stream
  bool isSplit() const { return prev != nullptr || next != nullptr; }
};

struct ByStreamAndSize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return uint64_t(a->stream) < uint64_t(b->stream);
    if (a->size != b->size) return a->size < b->size;
    return a->address < b->address;
  }
};
struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return uint64_t(a->stream) < uint64_t(b->stream);
    return a->address < b->address;
  }
};

struct PrivatePool;
struct BlockPool {
  explicit BlockPool(bool is_small, PrivatePool* of = nullptr) : small(is_small), owner(of) {}
  const bool small;
  PrivatePool* const owner;
  std::set<Block*, ByStreamAndSize> free;
  std::set<Block*, ByAddress> unmapped;
  int64_t searches = 0;
};
struct PrivatePool {
  explicit PrivatePool(PoolId pool_id) : id(pool_id), small(true, this), large(false, this) {}
  const PoolId id;
  int users = 1;
  int segments = 0;
  BlockPool small, large;
};

// One segment of a snapshot: its mapped blocks in order.
struct Segment {
  std::vector<Block> blocks;
  bool small;
  PoolId pool;
};

// The blocks of a private pool at one moment, by segment and address (CUDA graph trees go back to such moments).
struct PoolCheckpoint {
  struct Piece {
    uintptr_t address;
    size_t size, requested;
    bool small;
  };
  c10::DeviceIndex device = 0;
  PoolId pool{0, 0};
  std::vector<Piece> allocated;
};

// One line of torch.cuda.memory's history.
struct TraceEvent {
  const char* action;
  uintptr_t address;
  size_t size;
  c10::StreamId stream;
  Picoseconds time_ps;
};

class DeviceMemory {
 public:
  explicit DeviceMemory(c10::DeviceIndex device);

  // Throws c10::OutOfMemoryError with PyTorch's words when the simulated GPU is full.
  Block* allocate(size_t bytes, c10::StreamId stream);
  void free(Block* block);
  void recordStream(Block* block, c10::StreamId stream);
  void emptyCache(PoolId pool = {0, 0});

  DeviceStats stats();
  void resetPeak();
  std::pair<int64_t, int64_t> lifetimePeaks();  // allocated and reserved bytes, whatever the script reset
  int64_t lifetimeOoms();
  void resetAccumulated();
  std::pair<size_t, size_t> memoryInfo();  // free and total bytes, as cudaMemGetInfo
  void setFraction(double fraction);
  double fraction();

  using Filter = std::function<bool(c10::StreamId)>;
  void ensurePool(PoolId id);  // creates it or takes a reference
  void beginAllocateToPool(PoolId id, Filter filter);
  void endAllocateToPool(PoolId id);
  void releasePool(PoolId id);
  int poolUsers(PoolId id);
  PoolCheckpoint checkpoint(PoolId id);
  // Hands out again what was allocated at the checkpoint and is not now; blocks made since stay with their owners.
  std::vector<Block*> restore(const PoolCheckpoint& to);
  std::set<uintptr_t> allocatedIn(PoolId id);
  Block* blockAt(uintptr_t address);  // an allocated one; null if there is none
  // A capture forbids event queries: blocks used on other streams wait for its end.
  void setCapturing(bool capturing);

  // By address. Copies: making Python objects of them may free tensors, which needs the lock.
  std::vector<Segment> segments();
  using OomObserver = std::function<void(int64_t device, int64_t alloc, int64_t total, int64_t free)>;
  void addOomObserver(OomObserver observer);
  void keepHistory(bool on, size_t max_entries);
  std::vector<TraceEvent> history();

 private:
  struct Request {
    c10::StreamId stream;
    size_t size;     // rounded
    size_t segment;  // to ask the device for
    BlockPool* pool;
    Block* block = nullptr;
  };
  struct PendingUse {
    Tail tail;
    Block* block;
  };
  using Lock = std::unique_lock<std::mutex>;

  BlockPool& poolFor(size_t size, c10::StreamId stream);
  bool takeFree(Request& request);
  bool newSegment(Request& request, bool retry);
  bool grow(Request& request);  // expandable segments
  Block* findExpandable(const Request& request);
  bool map(Block* block, size_t bytes);
  void unmap(Block* block);
  void giveBack(Block* block);               // cudaFree
  bool releaseSome(const Request& request);  // max_split_size
  void releaseCached(Lock& lock, PoolId pool);
  void releasePoolBlocks(BlockPool& pool);
  void collectGarbage();
  Block* hand(Request& request, size_t bytes);
  Block* carve(BlockPool& pool, const PoolCheckpoint::Piece& piece);
  void freeBlock(Block* block);
  size_t merge(Block* into, Block* from, BlockPool& pool);
  void freeLater(Block* block);
  bool processPending(Lock& lock, bool wait);
  [[noreturn]] void outOfMemory(const Request& request, Lock& lock);
  template <typename F>
  void count(const BlockPool& pool, F&& change) {  // change(index) for the whole and for the pool's size class
    using c10::CachingAllocator::StatType;
    change(size_t(StatType::AGGREGATE));
    change(size_t(pool.small ? StatType::SMALL_POOL : StatType::LARGE_POOL));
  }
  void trace(const char* action, uintptr_t address, size_t size, c10::StreamId stream);
  size_t limit() const;

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  DeviceStats stats_;
  int64_t peak_allocated_ = 0, peak_reserved_ = 0;  // as of the last resetPeak()
  int64_t ooms_ = 0;                                // as of the last resetAccumulated()
  size_t reserved_ = 0;
  double fraction_ = 1.0;
  bool fraction_set_ = false;
  BlockPool small_{true}, large_{false};
  std::map<PoolId, std::unique_ptr<PrivatePool>> private_pools_;
  std::vector<std::pair<PoolId, Filter>> redirects_;
  bool capturing_ = false;
  std::vector<Block*> after_capture_;
  std::set<Block*> active_;  // handed out or waiting for other streams; only counted and listed
  std::map<c10::StreamId, std::deque<PendingUse>> pending_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<OomObserver> oom_observers_;
  bool keep_history_ = false;
  size_t history_limit_ = 0;
  std::deque<TraceEvent> history_;
};

DeviceMemory& deviceMemory(c10::DeviceIndex device);
// All devices that were used so far.
void forEachDeviceMemory(const std::function<void(DeviceMemory&)>& visit);

size_t roundedSize(size_t bytes);    // what the allocator hands out for a request
size_t segmentSize(size_t rounded);  // what it asks the device for

}  // namespace phantom
