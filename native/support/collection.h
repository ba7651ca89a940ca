// Pauses of Python's automatic garbage collection.

#pragma once

namespace autobatch {

// Turns automatic collection off; returns whether it was on.
bool pause_collection();
// Turns automatic collection on again.
void resume_collection();
// Turns automatic collection on again in a forked child if a thread has paused it; the child may lack that thread.
void resume_collection_in_child();

// Pauses collection for its lifetime.
class NoCollection {
 public:
  NoCollection() : was_on_(pause_collection()) {}
  ~NoCollection() {
    if (was_on_) resume_collection();
  }
  // Collects the youngest generation if automatic collection was on; returns false with an error.
  bool collect_young();

 private:
  bool was_on_;
};

}  // namespace autobatch
