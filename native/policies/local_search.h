// Improves a sequence of types by local search: perturbs it, compacts it, and keeps the result unless it costs more.
//
// A step inserts up to eight types within about twenty positions, or moves one entry, or swaps two; the perturbed
// sequence is compacted from the left or from the right, at random. An inserted type makes others superfluous, so most
// steps that improve are insertions. Results of equal cost are also kept, so that the search can cross plateaus.

#pragma once

#include "policies/sequences.h"

namespace autobatch {

// The random number generator of Park, Miller and Stockmeyer (1993), Remarks on random number generators.
class Draws {
 public:
  explicit Draws(int64_t seed) : state_(seed) {}
  // Draws a number from 0 to n - 1.
  int32_t next(int64_t n) {
    state_ = state_ * 48271 % MODULUS;
    return (int32_t)(state_ * n / MODULUS);
  }
  static constexpr int64_t MODULUS = (int64_t(1) << 31) - 1;

 private:
  int64_t state_;
};

class LocalSearch {
 public:
  // Prepares a search around a sequence that finishes the DAG; false if memory runs out.
  bool start(const Dag& dag, Span<const int32_t> sequence, int64_t seed);
  // Takes `n_steps` steps, or fewer if the cost reaches `enough`; false if memory runs out, or with an error if
  // interrupted.
  bool run(int64_t n_steps, double enough, Unlocked& unlocked);

  Vec<int32_t> current;

 private:
  bool disturb();
  bool insert_some();
  void move_one();
  bool compact_once(bool is_from_left);

  Dag dag_;
  OwnedDag backward_;
  Draws draws_{1};
  Vec<int32_t> other_, kept_, position_;
};

}  // namespace autobatch
