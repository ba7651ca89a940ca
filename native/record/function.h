// Functions that replace cells while programs are recorded: each tries the forms that are known of its cell.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject FunctionType;

}  // namespace autobatch
