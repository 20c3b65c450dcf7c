// torch's name of a data type in Python: "float32", not "Float".
#pragma once

#include <c10/core/ScalarType.h>

namespace phantom {

const char* dtypeName(c10::ScalarType dtype);

}  // namespace phantom
