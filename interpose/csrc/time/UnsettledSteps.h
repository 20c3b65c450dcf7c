// What the accounting of steps still waits for, for the end of a rank.
#pragma once

#include "core/Time.h"

#include <vector>

namespace phantom {

// All of it has ended once the device has, but this process may not know yet: a join of two tails is a node of its own,
// which the simulator announces after those that it joins.
std::vector<Tail> unsettledTails();

}  // namespace phantom
