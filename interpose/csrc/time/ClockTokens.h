// Clocks that wait under a token for the thread that will do the work.
#pragma once

#include <cstdint>

namespace phantom {

// The calling thread goes on with the clock that was reserved under `token`, if there is one.
void adoptClock(uint64_t token);
// Ends that clock unused.
void dropClock(uint64_t token);

}  // namespace phantom
