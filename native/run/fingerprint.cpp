#include "run/fingerprint.h"

#include <string.h>
#ifdef _MSC_VER
#include <intrin.h>
#endif

namespace autobatch {
namespace {

constexpr int N_LANES = 4;  // independent chains, so that multiplications overlap
constexpr int BLOCK = 16 * N_LANES;
constexpr uint64_t FIRST = 0x6A09E667F3BCC908u, SECOND = 0xBB67AE8584CAA73Bu;  // fractions of sqrt(2) and sqrt(3)

// Multiplies two words and combines both halves of the 128-bit product by xor, so that every bit of a word affects many
// bits of the result. The lower half alone would not do: there, the top bit of a word, the sign of a float, affects
// only the top bit.
uint64_t fold(uint64_t a, uint64_t b) {
#ifdef _MSC_VER
  return (a * b) ^ __umulh(a, b);
#else
  unsigned __int128 product = (unsigned __int128)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
#endif
}

uint64_t word_at(const uint8_t* bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

void take_in(uint64_t* lanes, const uint8_t* block) {
  for (int k = 0; k < N_LANES; k++)
    lanes[k] = fold(word_at(block + 16 * k) ^ FIRST, word_at(block + 16 * k + 8) ^ lanes[k]);
}

}  // namespace

uint64_t fingerprint(const uint8_t* bytes, int64_t n_bytes) {
  uint64_t lanes[N_LANES];
  for (int k = 0; k < N_LANES; k++) lanes[k] = SECOND * (uint64_t)(2 * k + 1);
  int64_t at = 0;
  for (; at + BLOCK <= n_bytes; at += BLOCK) take_in(lanes, bytes + at);
  uint8_t rest[BLOCK] = {};
  if (at < n_bytes) {
    memcpy(rest, bytes + at, (size_t)(n_bytes - at));
    take_in(lanes, rest);
  }
  uint64_t found = (uint64_t)n_bytes;  // the last block is padded with zeros, so the length must count
  for (int k = 0; k < N_LANES; k++) found = fold(found ^ FIRST, lanes[k] ^ SECOND);
  return found;
}

}  // namespace autobatch
