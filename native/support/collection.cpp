#include "support/collection.h"

#include "support/python.h"

namespace autobatch {
namespace {

bool is_paused = false;

}  // namespace

bool pause_collection() {
  bool was_on = PyGC_Disable();
  is_paused = is_paused || was_on;
  return was_on;
}

void resume_collection() {
  is_paused = false;
  PyGC_Enable();
}

void resume_collection_in_child() {
  if (is_paused) resume_collection();
}

bool NoCollection::collect_young() {
  if (!was_on_) return true;
  Ref gc(PyImport_ImportModule("gc"));
  Ref found(gc ? PyObject_CallMethod(gc.get(), "collect", "i", 0) : nullptr);
  return (bool)found;
}

}  // namespace autobatch
