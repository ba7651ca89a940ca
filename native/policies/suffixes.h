// Suffixes: merges nodes with the same continuations, and drops nodes that others imply.
//
// A suffix represents all nodes after which the same types must run. Suffix m is within suffix n if each path from m is
// a subsequence of a path from n, so that every sequence that finishes n finishes m. This holds if m is within some
// suffix that follows n; or if m is of n's type and every suffix that follows m is within one that follows n. Of the
// suffixes that follow a node, those within another are left out, so that the rest are an antichain; nodes of one type
// with the same antichain are one suffix. Types that are not kept are skipped, which projects the DAG on the others.

#pragma once

#include "graph/dag.h"
#include "support/vec.h"

namespace autobatch {

// S suffixes, each numbered after its followers.
struct Suffixes {
  Span<const int32_t> type_id;    // [S]
  Span<const int32_t> after_ptr;  // [S+1] suffix n is followed by after[after_ptr[n]:after_ptr[n+1]], in order
  Span<const int32_t> after;
  Span<const int32_t> first;    // the antichain of all work, in order
  Span<const uint64_t> within;  // [S, W] bit m of row n: m is within n and is not n; empty if not compared
  ptrdiff_t n_words = 0;        // W
  int32_t n_types = 0;

  int32_t size() const { return (int32_t)type_id.size; }
  Span<const int32_t> followers(int32_t n) const { return after.part(after_ptr[n], after_ptr[n + 1]); }
  const uint64_t* row(int32_t n) const { return within.data + n * n_words; }
  bool is_within(int32_t m, int32_t n) const { return row(n)[m >> 6] >> (m & 63) & 1; }
};

// Finds the suffixes of a DAG, projected on the types that are kept.
class SuffixFinder {
 public:
  // With `compares`, also finds which suffixes are within which; otherwise, only nodes with equal types and followers
  // are merged. False if memory runs out, or with an error if interrupted.
  bool find(const Dag& dag, Span<const uint8_t> kept, bool compares, Unlocked& unlocked);
  Suffixes suffixes() const { return {type_id_, after_ptr_, after_, first_, within_, n_words_, n_types_}; }

  Vec<int32_t> suffix;  // [N] of each node, -1 if its type is not kept

 private:
  bool link(const Dag& dag, Span<const uint8_t> kept);
  bool prepare();
  ptrdiff_t meet(int32_t node, int32_t visit);
  ptrdiff_t keep_largest(ptrdiff_t n);
  ptrdiff_t slot_of(int32_t type, Span<const int32_t> followers) const;
  bool append(int32_t type, Span<const int32_t> followers);
  bool compare(int32_t start, int32_t end, Unlocked& unlocked);
  uint64_t* row(int32_t n) { return within_.data() + n * n_words_; }
  int32_t size() const { return (int32_t)type_id_.size(); }

  int32_t n_types_ = 0;
  bool compares_ = false;
  // The nodes, and a virtual node N that all nodes without inputs read.
  Vec<int32_t> order_;      // [N+1] readers before sources; within a level, kept nodes first
  Vec<int32_t> level_;      // [N+1] the largest number of kept nodes on a path from here
  Vec<int32_t> kept_type_;  // [N+1] the type of a kept node, or -1
  Vec<int32_t> reader_ptr_, reader_;
  // Suffixes found so far.
  Vec<int32_t> type_id_, after_ptr_, after_, first_;
  Vec<int32_t> before_;  // the previous suffix of the same type, or -1
  Vec<int32_t> last_;    // [T] the last suffix of each type
  Vec<uint64_t> within_, union_;
  ptrdiff_t n_words_ = 0;
  Vec<int32_t> table_;                         // a hash table with open addressing, by type and followers
  Vec<int32_t> passed_, pass_ptr_, pass_end_;  // the first suffixes after each node that is not kept
  Vec<int32_t> seen_;                          // the last visit that met each suffix
  Vec<int32_t> here_;                          // suffixes met in this visit
};

// Makes the DAG of the reachable suffixes, and finds the node of each suffix, or -1; false if memory runs out.
bool to_dag(const Suffixes& suffixes, OwnedDag& dag, Vec<int32_t>& place);

// Mixes a number into the hash of a list of numbers.
inline uint64_t mix(uint64_t key, int32_t number) {
  key = (key ^ (uint64_t)number) * 0x9E3779B97F4A7C15u;
  return key ^ key >> 29;
}

}  // namespace autobatch
