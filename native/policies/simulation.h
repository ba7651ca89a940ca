// The Python type of a simulation, for policies written in Python, environments and devices.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject SimulationType;

}  // namespace autobatch
