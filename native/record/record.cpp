#include "record/record.h"

#include "record/cell.h"
#include "record/derivatives.h"
#include "record/forest.h"
#include "record/forms.h"
#include "record/function.h"
#include "record/handles.h"
#include "record/layout.h"
#include "record/listener.h"
#include "record/log.h"
#include "record/programs.h"
#include "record/rule.h"
#include "record/shortcut.h"
#include "record/snapshot.h"
#include "record/stage.h"
#include "record/tape.h"

namespace autobatch {
namespace {

PyMethodDef functions[] = {{"seal", seal, METH_O, nullptr},
                           {"seal_cells", seal_cells, METH_O, nullptr},
                           {"array_key", array_key, METH_O, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_record(PyObject* module) {
  PyTypeObject* types[] = {&HandleType,   &RowsType,    &LogType,          &FormType,         &FunctionType,
                           &ShortcutType, &StageType,   &LayoutType,       &RuleType,         &DerivativesType,
                           &TapeType,     &CellType,    &BoundCellType,    &CallListenerType, &SnapshotType,
                           &ForestType,   &RequestType, &AsyncProgramType, &StageBlockType};
  for (PyTypeObject* type : types)
    if (PyModule_AddType(module, type) < 0) return false;
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace autobatch
