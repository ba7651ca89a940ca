// Snapshots of the objects in lists, dicts and other containers; see `autobatch.params.known`.

#pragma once

#include "support/python.h"

namespace autobatch {

extern PyTypeObject SnapshotType;

}  // namespace autobatch
