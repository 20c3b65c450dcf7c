// The detail of a rank's steps, kept in a file for the timeline, the report and the exports: device spans, waits of the
// host, steps, memory. phantom/timeline/README.md describes the format; phantom/timeline/spool.py reads it.
#pragma once

#include "core/Time.h"

#include <cstdint>
#include <string>
#include <vector>

namespace phantom {

enum class SpanKind : uint8_t;

// From now on the steps `first_step` <= index < `last_step` are kept; memory events from the start until `last_step`.
void openSpool(const std::string& path, int rank, int64_t first_step, int64_t last_step);
void closeSpool();  // writes what is buffered and closes the file; later calls are ignored
void resetSpoolAfterFork();

bool spoolKeepsStep(int64_t index);
bool spoolKeepsNow();  // the running step is one of those kept
bool spoolKeepsMemory();
void spoolStepBegins(int64_t index);  // all that follows belongs to step `index`
int64_t runningStep();                // 0 before the first step has ended

void spoolKernel(uint32_t kernel, const std::string& name, const std::string& klass, const std::string& source);
// `node`: of a collective, 0 for a kernel. `stream`: device * 65536 + stream id.
void spoolSpan(uint32_t stream, uint32_t kernel, Picoseconds start_ps, Picoseconds end_ps, SpanKind kind,
               uint64_t node);
void spoolStep(int64_t index, Picoseconds begin_ps, Picoseconds end_ps, Picoseconds compute_ps, Picoseconds exposed_ps,
               Picoseconds idle_ps);
// The thread of `clock` stood still from `start_ps` to `end_ps`.
void spoolWait(uint32_t clock, Picoseconds start_ps, Picoseconds end_ps, const std::string& why);
// `bytes` is negative for memory given back.
void spoolMemory(Picoseconds time_ps, uint32_t device, uint64_t address, int64_t bytes, int64_t allocated_bytes,
                 int64_t reserved_bytes, uint32_t phase);
// The blocks that live at `addresses` now hold `category`.
void spoolTag(const std::string& category, const std::vector<uint64_t>& addresses);

}  // namespace phantom
