// The types and functions of this folder that Python sees; `_native.pyi` documents them.

#pragma once

#include "support/python.h"

namespace autobatch {

bool add_record(PyObject* module);

}  // namespace autobatch
