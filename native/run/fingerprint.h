// A fingerprint of an array's bytes, to detect unreported changes.

#pragma once

#include <stdint.h>

namespace autobatch {

// Returns a hash that almost certainly differs between arrays with different bytes. It is not cryptographic.
uint64_t fingerprint(const uint8_t* bytes, int64_t n_bytes);

}  // namespace autobatch
