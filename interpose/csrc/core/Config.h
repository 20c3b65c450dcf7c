// What the simulator told this process about the simulated machine (PHANTOM_CONFIG), as plain values.
#pragma once

#include "core/Time.h"

#include <cstddef>
#include <string>

namespace phantom {

enum class CpuTime { kModel, kMeasured, kNone };
enum class UnknownValues { kHealthy, kZeros, kError };

struct DeviceProperties {
  std::string name = "NVIDIA H100 80GB HBM3";
  int major = 9;
  int minor = 0;
  int64_t total_memory_bytes = int64_t(80) << 30;  // what get_device_properties and mem_get_info report
  int multi_processor_count = 132;
  int64_t l2_cache_bytes = int64_t(50) << 20;
};

// Modelled host time; sources are in the cluster file's [host] table.
struct HostModel {
  Picoseconds op_ps = 4'500'000;              // one dispatched operator that launches a kernel
  Picoseconds view_ps = 1'500'000;            // one operator that only makes metadata
  Picoseconds backward_node_ps = 4'000'000;   // one operator issued by the autograd thread
  Picoseconds launch_latency_ps = 2'000'000;  // from the launch call to the earliest start on an idle stream
  Picoseconds collective_ps = 12'000'000;     // posting one collective
  Picoseconds query_ps = 1'000'000;           // Event.query and the like
  Picoseconds sync_ps = 3'000'000;            // returning from a synchronisation
  Picoseconds store_ps = 60'000'000;          // one round trip to the rendezvous store
};

struct Config {
  int device_count = 8;
  DeviceProperties device;
  int64_t capacity_bytes = int64_t(79) << 30;  // total memory less the context and NCCL allowance
  HostModel host;
  CpuTime cpu_time = CpuTime::kModel;
  UnknownValues unknown_values = UnknownValues::kHealthy;
  bool values = true;
  int64_t launch_queue = 1024;
  bool blocking_launches =
      false;  // the device is the CPU: a call returns when its kernel has ended, host copies are none
  int64_t lazy_host_bytes = int64_t(16) << 20;  // CPU initialisations above this leave their pages untouched
  uint64_t seed = 0;
  double h2d_bytes_per_s = 55e9;  // pinned; pageable is slower, see kernels/Copy.cpp
};

Config& config();  // set once by install()

}  // namespace phantom
