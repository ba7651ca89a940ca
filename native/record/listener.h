// A listener to the calls of a thread while a cell's body is traced; see `autobatch.trace.tracking`.
//
// Python calls a profile function for each call of a function. Almost all calls repeat earlier ones: this one reports
// a Python function once, and a harmless function of a module once.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject CallListenerType;

}  // namespace autobatch
