// The stage of each thread: the recording or the tracer that is active in it; see `autobatch.ops.operators`.

#pragma once

#include "record/log.h"
#include "support/python.h"

namespace autobatch {

// Returns the log of the recording in this thread, borrowed; null if there is none.
Log* current_log();

extern PyTypeObject StageType, StageBlockType;

}  // namespace autobatch
