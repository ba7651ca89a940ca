#include "run/fingerprint.h"

#include <string.h>

namespace autobatch {
namespace {

constexpr int N_LANES = 4;  // independent chains, so that multiplications overlap

// Mixes a word in. The product moves differences up and the rotation moves them down, so that two do not cancel.
uint64_t mix(uint64_t state, uint64_t word) {
  uint64_t product = (state ^ word) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return product << 29 | product >> 35;
}

uint64_t word_at(const uint8_t* bytes, int64_t n_bytes = 8) {
  uint64_t word = 0;
  memcpy(&word, bytes, (size_t)n_bytes);
  return word;
}

}  // namespace

uint64_t fingerprint(const uint8_t* bytes, int64_t n_bytes) {
  uint64_t lanes[N_LANES] = {1, 2, 3, 4}, found = (uint64_t)n_bytes;
  int64_t at = 0;
  for (; at + 8 * N_LANES <= n_bytes; at += 8 * N_LANES)
    for (int k = 0; k < N_LANES; k++) lanes[k] = mix(lanes[k], word_at(bytes + at + 8 * k));
  for (; at + 8 <= n_bytes; at += 8) found = mix(found, word_at(bytes + at));
  if (at < n_bytes) found = mix(found, word_at(bytes + at, n_bytes - at));
  for (int k = 0; k < N_LANES; k++) found = mix(found, lanes[k]);
  return found;
}

}  // namespace autobatch
