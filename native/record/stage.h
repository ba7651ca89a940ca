// The stage of each thread: what records or traces there at present; see `autobatch.ops.operators`.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

// What records or traces in this thread, borrowed; null in eager mode.
PyObject* current_stage();

// The log of what records in this thread; null where nothing does.
Log* current_log();

extern PyTypeObject StageType;

}  // namespace autobatch
