// Shortcuts: callables for ops and operators, such as `ab.tanh(x)` and `x + y`, and for public functions made of ops,
// such as `ab.sum_n`. They record calls of a known form without Python.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject ShortcutType;

}  // namespace autobatch
