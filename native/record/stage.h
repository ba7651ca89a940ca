// The stage of each thread: what records or traces there at present; see `autobatch.ops.operators`.

#pragma once

#include "support/python.h"

namespace autobatch {

// What records or traces in this thread, borrowed; null in eager mode.
PyObject* current_stage();

extern PyTypeObject StageType;

}  // namespace autobatch
