// Streams in virtual time: kernels, waits, events, synchronisation, the launch queue.
//
// Everything here is safe to call from any thread; without an open session (a process that is no rank, or a test) it
// works as long as no unresolved node is involved.
#pragma once

#include "core/Time.h"

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

namespace phantom {

using c10::DeviceIndex;
using c10::StreamId;

enum class SpanKind : uint8_t { kCompute, kCommunication };

// What a launched kernel is called and where its cost came from; interned once per metadata-cache entry.
// `source`: measured | predicted | unpriced. Returns a small index for launchKernel().
uint32_t internKernel(const std::string& name, const std::string& klass, const std::string& source);

// Puts a kernel of `duration_ps` on the stream, not before the calling thread's clock plus the launch latency.
// Does not charge host time (chargeHost does) but waits in virtual time while the launch queue is full.
void launchKernel(DeviceIndex device, StreamId stream, Picoseconds duration_ps, uint32_t kernel);

Tail streamTail(DeviceIndex device, StreamId stream);
Tail deviceTail(DeviceIndex device);  // over all its streams
Tail joinTails(Tail a, Tail b);       // the later of both; may make a node
void streamWait(DeviceIndex device, StreamId stream, const Tail& tail);
// A collective launched on `stream`: it is ready after the stream's tail and the thread's clock; afterwards the stream's
// tail is `node`. Returns the ready tail for the record.
Tail occupyStream(DeviceIndex device, StreamId stream, const NodePtr& node, const std::string& what);

// Blocks the calling thread (without the GIL) until `tail` has ended and moves its clock there. `why` is shown to users.
void synchronize(Tail tail, const char* why);
// The same at no host cost of its own: a call that returns only when its work has ended.
void waitFor(Tail tail, const char* why);
// Whether `tail` has ended at the calling thread's clock. Asks the simulator if that is not known yet.
bool query(Tail tail);

// The calling thread's place in the script, "file:line", for reports; empty where there is no Python frame.
std::string pythonLocation();

void resetTimelineAfterFork();

}  // namespace phantom
