#include "core/Config.h"

namespace phantom {

Config& config() {
  static Config instance;
  return instance;
}

}  // namespace phantom
