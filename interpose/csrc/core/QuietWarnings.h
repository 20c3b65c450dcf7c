// Drops torch's warnings while it is the handler: each replaced kernel would make one, and replacing is the purpose.
#pragma once

#include <c10/util/Exception.h>

namespace phantom {

class QuietWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace phantom
