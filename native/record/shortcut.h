// Shortcuts: public functions of lists, such as `ab.sum_n`, that are recorded without Python if a program calls them
// with a plain list of values and the form of the call is known.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject ShortcutType;

}  // namespace autobatch
