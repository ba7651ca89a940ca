// Shortcuts: ops and operators of values, such as `ab.tanh(x)` and `x + y`, and public functions made of ops, such as
// `ab.sum_n`, whose calls are recorded without Python if their form is known.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject ShortcutType;

}  // namespace autobatch
