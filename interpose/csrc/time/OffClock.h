// Work of an autotuner: priced as always, but put on no stream and at no host time. Compiling and tuning take real time
// on a real machine too, and a job is not timed while it does them.
#pragma once

#include "core/Time.h"

namespace phantom {

// Whether the calling thread is between off_clock_begin() and off_clock_end().
bool offClock();
// True if the kernel was counted there and must not go on a stream. Called by launchKernel.
bool countOffClock(Picoseconds duration_ps);

}  // namespace phantom
