// The objects in lists, dicts and other containers at one moment; see `autobatch.params.known`.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject SnapshotType;

}  // namespace autobatch
