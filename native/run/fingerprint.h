// A fingerprint of an array's bytes, by which a change is noticed that nobody reports.

#pragma once

#include <stdint.h>

namespace autobatch {

// Returns a number that differs, with near certainty, between arrays of other bytes. It is not meant against attacks.
uint64_t fingerprint(const uint8_t* bytes, int64_t n_bytes);

}  // namespace autobatch
