// Shortcuts: public functions of lists, such as `ab.sum_n`, and operators of values, such as `x + y`, that are recorded
// without Python if the form of the call is known.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject ShortcutType;

}  // namespace autobatch
