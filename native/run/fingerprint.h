// A fingerprint of an array's bytes, to detect changes that are not reported.

#pragma once

#include <stdint.h>

namespace autobatch {

// Returns a number that differs, with near certainty, between arrays of other bytes. It does not resist attacks.
uint64_t fingerprint(const uint8_t* bytes, int64_t n_bytes);

}  // namespace autobatch
