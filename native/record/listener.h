// A profile function that reports the calls in a thread while a cell's body is traced; see `autobatch.trace.tracking`.
//
// Python calls it for each call of a function. Almost all calls repeat earlier ones, so it reports each Python function
// once, and each harmless function of a module once.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject CallListenerType;

}  // namespace autobatch
