// The stream of records between this rank and the simulator (docs/architecture.md lists the records).
#pragma once

#include "time/Clock.h"
#include "core/Msgpack.h"
#include "core/Time.h"

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace phantom {

bool sessionOpen();
// Called on first use of the device; opens the session if this process is a rank (set by Python), once.
void ensureSession();

NodePtr newNode();  // a node of this rank that only the simulator can resolve

// Appends one record. `write` packs the whole array. Thread-safe; sent within 2 ms or by the next flush().
void record(const std::function<void(Packer&)>& write);
// The last record: what other threads record afterwards is dropped.
void sayBye();
void flush();

uint64_t newRequest();
// Waits for ANSWER(request): flushes, releases the GIL, keeps Ctrl-C working. Throws c10::DistBackendError after an ABORT.
Picoseconds awaitAnswer(uint64_t request);

// VALUE(node, index) handlers: called once, on the thread that feeds on_message, with the raw payload or nullopt.
using ValueHandler = std::function<void(std::optional<std::string> payload)>;
void onValue(const NodePtr& node, uint32_t index, ValueHandler handler);

// Waits (without the GIL, Ctrl-C works, ABORT throws) until `ready()` is true; `notifySession()` makes it look again.
void awaitCondition(const std::function<bool()>& ready);
void notifySession();

void throwIfAborted();

}  // namespace phantom
