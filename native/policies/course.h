// The Python type of a mini-batch to learn on.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject CourseType;

}  // namespace autobatch
