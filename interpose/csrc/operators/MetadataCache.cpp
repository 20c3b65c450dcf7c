#include "operators/MetadataCache.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace phantom {
namespace {

struct KeyHash {
  size_t operator()(const MetadataKey& key) const { return key.low; }
};

// Two generations per shard: when the young one is full it becomes the old one, and what is then still used moves back.
struct Shard {
  std::mutex mutex;
  std::unordered_map<MetadataKey, EntryPtr, KeyHash> young, old;
};

constexpr size_t kShards = 16;
using Shards = std::array<Shard, kShards>;
Shards* g_shards = new Shards;
std::atomic<size_t> g_capacity{1 << 17};

Shard& shardOf(const MetadataKey& key) { return (*g_shards)[(key.high >> 40) % kShards]; }

void put(Shard& shard, const MetadataKey& key, EntryPtr entry) {
  if (shard.young.size() >= g_capacity / kShards / 2 + 1) {
    shard.old = std::move(shard.young);
    shard.young.clear();
  }
  shard.young[key] = std::move(entry);
}

// In front of the shards: most calls of a training loop repeat within one thread, and then need no lock.
struct Recent {
  MetadataKey key;
  EntryPtr entry;
};
constexpr size_t kRecent = 2048;
using ThreadRecent = std::array<Recent, kRecent>;

ThreadRecent& threadRecent() {
  thread_local std::unique_ptr<ThreadRecent> recent = std::make_unique<ThreadRecent>();
  return *recent;
}

}  // namespace

EntryPtr findMetadata(const MetadataKey& key) {
  Recent& recent = threadRecent()[key.low % kRecent];
  if (recent.key == key && recent.entry) return recent.entry;
  Shard& shard = shardOf(key);
  std::lock_guard<std::mutex> hold(shard.mutex);
  auto found = shard.young.find(key);
  if (found != shard.young.end()) {
    recent = {key, found->second};
    return found->second;
  }
  found = shard.old.find(key);
  if (found == shard.old.end()) return EntryPtr();
  EntryPtr entry = found->second;
  shard.old.erase(found);
  put(shard, key, entry);
  recent = {key, entry};
  return entry;
}

void storeMetadata(const MetadataKey& key, EntryPtr entry) {
  threadRecent()[key.low % kRecent] = {key, entry};
  Shard& shard = shardOf(key);
  std::lock_guard<std::mutex> hold(shard.mutex);
  put(shard, key, std::move(entry));
}

size_t metadataEntries() {
  size_t total = 0;
  for (Shard& shard : *g_shards) {
    std::lock_guard<std::mutex> hold(shard.mutex);
    total += shard.young.size() + shard.old.size();
  }
  return total;
}

void setMetadataCapacity(size_t entries) { g_capacity = entries; }

}  // namespace phantom
