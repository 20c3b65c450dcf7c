// The side of the session that Python's gRPC client drives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace phantom {

void openSession();
void closeSession();  // what is still in the buffer is handed out once more by nextBatch
void resetSessionAfterFork();

// Waits for records and returns them with the number of messages received so far; an empty string after `timeout_s`,
// nullopt when the session is closed and nothing is left. Call without the GIL.
std::optional<std::pair<std::string, uint64_t>> nextBatch(double timeout_s);
void onMessage(std::string_view batch);      // throws std::runtime_error where it breaks the schema
void abortSession(const std::string& text);  // the connection broke
std::optional<std::string> abortText();

}  // namespace phantom
