// State that a forked child must renew, because the child has only the thread that forked.

#pragma once

#include "support/python.h"

namespace autobatch {

// A mark for work in progress: the thread that sets it removes it. In a forked child, the marks of other threads do not
// count, because the threads that would remove them do not exist there.
class Mark {
 public:
  void set() { thread_ = PyThread_get_thread_ident(), n_forks_ = n_forks; }
  void remove() { thread_ = 0; }
  bool is_set() const {
    return thread_ && (n_forks_ == n_forks || (thread_ == survivor && n_forks_ >= survives_since));
  }
  // Lets forked children count the fork, and end pauses of garbage collection; false with an error.
  static bool renew_in_children();

 private:
  static PyObject* renew(PyObject*, PyObject*);

  // The forks between the process that loaded the module and this one, the thread that made the last of them, and the
  // number of forks before the first of those that it made in a row. New threads may get the numbers of former ones.
  static int64_t n_forks, survives_since;
  static unsigned long survivor;

  unsigned long thread_ = 0;
  int64_t n_forks_ = 0;
};

}  // namespace autobatch
