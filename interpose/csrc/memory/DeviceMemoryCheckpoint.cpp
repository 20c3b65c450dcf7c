// Going back to an earlier state of a CUDA graph's private pool, as torch/_inductor/cudagraph_trees.py does before it
// records another graph over the live outputs of a replayed one.
//
// c10/cuda/CUDACachingAllocator.cpp frees the whole pool and builds it up again from the checkpoint. Here blocks that are
// the same before and after are left alone, since storages point at them.
#include "memory/DeviceMemory.h"

#include <c10/util/Exception.h>

namespace phantom {

PoolCheckpoint DeviceMemory::checkpoint(PoolId id) {
  Lock lock(mutex_);
  TORCH_CHECK(private_pools_.count(id), "no memory pool (", id.first, ", ", id.second, ") on cuda:", int(device_));
  PoolCheckpoint found;
  found.device = device_;
  found.pool = id;
  PrivatePool* pool = private_pools_.at(id).get();
  for (const Block* block : active_) {
    if (!block->allocated || block->pool->owner != pool) continue;
    found.allocated.push_back({block->address, block->size, block->requested, block->pool->small});
  }
  return found;
}

std::set<uintptr_t> DeviceMemory::allocatedIn(PoolId id) {
  std::set<uintptr_t> found;
  for (const PoolCheckpoint::Piece& piece : checkpoint(id).allocated) found.insert(piece.address);
  return found;
}

Block* DeviceMemory::blockAt(uintptr_t address) {
  Lock lock(mutex_);
  for (Block* block : active_) {
    if (block->allocated && block->address == address) return block;
  }
  return nullptr;
}

// Takes exactly this piece out of a free block; null where something else lives there now.
Block* DeviceMemory::carve(BlockPool& pool, const PoolCheckpoint::Piece& piece) {
  Block* whole = nullptr;
  for (Block* free : pool.free) {
    if (free->address <= piece.address && piece.address + piece.size <= free->address + free->size) whole = free;
  }
  if (whole == nullptr) return nullptr;
  pool.free.erase(whole);
  const size_t before = piece.address - whole->address;
  if (before > 0) {  // what lies before it becomes a free block of its own
    auto* left = new Block(*whole);
    left->size = before;
    left->next = whole;
    if (left->prev) left->prev->next = left;
    whole->prev = left;
    whole->address += before;
    whole->size -= before;
    pool.free.insert(left);
    if (!whole->arena) {
      const bool was_split = left->prev != nullptr || whole->next != nullptr;
      count(pool, [&](size_t type) {  // `hand` counts the rest as if `whole` had been split before
        stats_.inactive_split[type].increase(was_split ? 1 : 2);
        stats_.inactive_split_bytes[type].increase(was_split ? 0 : before + whole->size);
      });
    }
  }
  Request request{whole->stream, piece.size, 0, &pool, whole};
  return hand(request, piece.requested);
}

std::vector<Block*> DeviceMemory::restore(const PoolCheckpoint& to) {
  Lock lock(mutex_);
  TORCH_CHECK(private_pools_.count(to.pool), "no memory pool (", to.pool.first, ", ", to.pool.second,
              ") on cuda:", int(device_));
  PrivatePool& pool = *private_pools_.at(to.pool);
  std::set<uintptr_t> present;
  for (const Block* block : active_) {
    if (block->allocated && block->pool->owner == &pool) present.insert(block->address);
  }
  std::vector<Block*> made;
  for (const PoolCheckpoint::Piece& piece : to.allocated) {
    if (present.count(piece.address)) continue;
    Block* block = carve(piece.small ? pool.small : pool.large, piece);
    if (block != nullptr) made.push_back(block);
  }
  return made;
}

}  // namespace phantom
