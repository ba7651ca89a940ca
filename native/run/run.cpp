// The Python bindings of this folder; `_native.pyi` documents them.

#include "run/entries.h"
#include "run/fingerprint.h"
#include "run/optimizer.h"
#include "run/rows.h"

namespace autobatch {

bool check_calls(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end) {
  bool is_outside = at < 0 || end > calls.size;
  for (int64_t k = at; !is_outside && k < end; k++) is_outside = (uint64_t)calls[k].step >= (uint64_t)steps.size;
  if (is_outside)
    PyErr_Format(PyExc_ValueError, "calls %lld..%lld must lie in 0..%zd and name steps below %zd", (long long)at,
                 (long long)end, calls.size, steps.size);
  return !is_outside;
}

bool read_calls(PyObject* array, Span<const Call>& calls) {
  Table<const int64_t> rows;
  if (!read_table<int64_t>(array, "calls", rows)) return false;
  static_assert(sizeof(Call) == 2 * sizeof(int64_t));
  if (rows.columns != 2)
    return PyErr_Format(PyExc_ValueError, "calls must have 2 columns, step and tile, got %zd", rows.columns), false;
  calls = {reinterpret_cast<const Call*>(rows.data), rows.rows};
  return true;
}

bool read_call_list(PyObject* tuple, Span<const BoundStep> steps, int64_t first, int64_t last, CallSpans& list) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 4)
    return refuse_type("calls", "(calls, tile_ptr, ptr, is_serial)", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read_calls(parts[0], list.calls) || !read<int64_t>(parts[1], "tile_ptr", list.tile_ptr) ||
      !read<int64_t>(parts[2], "ptr", list.ptr) || !read_flags(parts[3], "is_serial", list.is_serial))
    return false;
  bool fits = last < list.ptr.size && list.ptr[first] >= 0 && list.ptr[last] < list.tile_ptr.size;
  for (int64_t part = first; fits && part < last; part++) fits = list.ptr[part] <= list.ptr[part + 1];
  int64_t tile = fits ? list.ptr[first] : 0, end = fits ? list.ptr[last] : 0;
  for (int64_t p = tile; fits && p < end; p++) fits = list.tile_ptr[p] <= list.tile_ptr[p + 1];
  if (!fits)
    return PyErr_SetString(PyExc_ValueError,
                           "ptr must never decrease and stay in tile_ptr, and tile_ptr must never decrease"),
           false;
  return check_calls(steps, list.calls, list.tile_ptr[tile], list.tile_ptr[end]);
}

namespace {

// call_steps(addresses, calls, at, end): makes the calls at:end, up to the first call of a step that Python runs;
// returns the number of that call, or `end`.
PyObject* call_steps(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  Span<const BoundStep> steps;
  Span<const Call> calls;
  int64_t at, end;
  if (!takes("call_steps", n, 4) || !read_records(arguments[0], "addresses", steps) ||
      !read_calls(arguments[1], calls) || !read_long(arguments[2], "at", at) || !read_long(arguments[3], "end", end) ||
      !check_calls(steps, calls, at, end))
    return nullptr;
  {
    Unlocked unlocked;
    at = autobatch::call_steps(steps, calls, at, end);
  }
  return PyLong_FromLongLong(at);
}

struct NamedStep {
  const char* name;
  Step step;
};

constexpr NamedStep STEPS[] = {{"multiply_by_library", multiply_by_library},
                               {"multiply_by_panels", multiply_by_panels},
                               {"multiply_by_bf16_panels", multiply_by_bf16_panels},
                               {"multiply_rounded", multiply_rounded},
                               {"add_outer", add_outer},
                               {"add_bf16_outer", add_bf16_outer},
                               {"add_rounded_outer", add_rounded_outer},
                               {"add_row_sum", add_row_sum}};

// step_addresses(): returns the addresses of the steps that need no generated kernel, by name.
PyObject* step_addresses(PyObject*, PyObject*) {
  Ref found(PyDict_New());
  for (const NamedStep& one : STEPS) {
    Ref address(PyLong_FromVoidPtr(reinterpret_cast<void*>(one.step)));
    if (!found || !address || PyDict_SetItemString(found.get(), one.name, address.get()) < 0) return nullptr;
  }
  return found.release();
}

// Calls `function` with a float or a double, whichever is the element type of an array; null with an error for others.
template <class Function>
PyObject* by_dtype(PyObject* array, const char* what, Function function) {
  int type = PyArray_Check(array) ? PyArray_TYPE(reinterpret_cast<PyArrayObject*>(array)) : NPY_NOTYPE;
  if (type == NPY_FLOAT64) return function(double());
  if (type == NPY_FLOAT32) return function(float());
  return PyErr_Format(PyExc_TypeError, "%s must be an array of float32 or float64, got %.80s", what,
                      Py_TYPE(array)->tp_name);
}

// Returns whether rows with a stride of `step` lie within `size` numbers; false if any number is negative. Divides,
// because the product of the number of rows and the stride may overflow.
bool rows_fit(int64_t n_rows, int64_t width, int64_t step, int64_t size) {
  if (n_rows < 0 || width < 0 || step < 0) return false;
  if (n_rows == 0 || width == 0) return true;
  return width <= size && (step == 0 || n_rows - 1 <= (size - width) / step);
}

bool rises_strictly(Span<const int64_t> ids, int64_t end) {
  bool rises = !ids.size || (ids[0] >= 0 && ids[ids.size - 1] < end);
  for (ptrdiff_t i = 1; i < ids.size; i++) rises &= ids[i - 1] < ids[i];
  return rises;
}

// sum_rows(n, work, values, first, step, width, ids, sums): sums rows by the first n ids of `work[0]`; returns the
// number of distinct ids.
PyObject* sum_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  if (!takes("sum_rows", n_arguments, 8)) return nullptr;
  return by_dtype(arguments[2], "values", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    int64_t n, first, step, width;
    Span<int64_t> room[4], ids;
    Span<int64_t>* rows[] = {&room[0], &room[1], &room[2], &room[3]};
    Span<const T> values;
    Span<T> sums;
    if (!read_long(arguments[0], "n", n) || !read_rows<int64_t>(arguments[1], "work", 4, rows) ||
        !read<T>(arguments[2], "values", values) || !read_long(arguments[3], "first", first) ||
        !read_long(arguments[4], "step", step) || !read_long(arguments[5], "width", width) ||
        !read_mutable<int64_t>(arguments[6], "ids", ids) || !read_mutable<T>(arguments[7], "sums", sums))
      return nullptr;
    if (n < 0 || n > room[0].size || n > ids.size || !rows_fit(n, width, width, sums.size))
      return PyErr_Format(PyExc_ValueError,
                          "work, ids and sums must have room for %lld rows of %lld numbers, got work (4, %zd), ids "
                          "(%zd) and sums (%zd)",
                          (long long)n, (long long)width, room[0].size, ids.size, sums.size);
    if (first < 0 || first > values.size || !rows_fit(n, width, step, values.size - first))
      return PyErr_Format(PyExc_ValueError, "%lld rows from %lld on, %lld apart, must lie in the %zd numbers of values",
                          (long long)n, (long long)first, (long long)step, values.size);
    for (int64_t at = 0; at < n; at++)
      if (room[0][at] < 0)
        return PyErr_Format(PyExc_ValueError, "ids must not be negative, got %lld", (long long)room[0][at]);
    int64_t n_ids;
    {
      Unlocked unlocked;
      n_ids = sum_rows_by_id<T>(n, {room[0].data, room[1].data, room[2].data, room[3].data},
                                {values.data + first, step, width}, ids.data, sums.data);
    }
    return PyLong_FromLongLong(n_ids);
  });
}

// merge_rows(n, ids, values, n_more, more, more_values, width): adds rows to others in place; returns the number of
// distinct ids.
PyObject* merge_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  if (!takes("merge_rows", n_arguments, 7)) return nullptr;
  return by_dtype(arguments[2], "values", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    int64_t n, n_more, width;
    Span<int64_t> ids;
    Span<T> values;
    Span<const int64_t> more;
    Span<const T> more_values;
    if (!read_long(arguments[0], "n", n) || !read_mutable<int64_t>(arguments[1], "ids", ids) ||
        !read_mutable<T>(arguments[2], "values", values) || !read_long(arguments[3], "n_more", n_more) ||
        !read<int64_t>(arguments[4], "more", more) || !read<T>(arguments[5], "more_values", more_values) ||
        !read_long(arguments[6], "width", width))
      return nullptr;
    if (n < 0 || n_more < 0 || n > ids.size || n_more > ids.size - n || n_more > more.size ||
        !rows_fit(n + n_more, width, width, values.size) || !rows_fit(n_more, width, width, more_values.size))
      return PyErr_Format(PyExc_ValueError,
                          "ids and values must have room for %lld + %lld rows of %lld numbers, got ids (%zd), values "
                          "(%zd), more (%zd) and more_values (%zd)",
                          (long long)n, (long long)n_more, (long long)width, ids.size, values.size, more.size,
                          more_values.size);
    if (!rises_strictly(ids.part(0, n), INT64_MAX) || !rises_strictly(more.part(0, n_more), INT64_MAX))
      return refuse_value("ids must be at least 0 and strictly increase");
    if (overlap<int64_t, int64_t>(ids, more)) return refuse_value("more must not share memory with ids");
    int64_t total;
    {
      Unlocked unlocked;
      total = autobatch::merge_rows<T>(n, ids.data, values.data, more.part(0, n_more), more_values.data, width);
    }
    return PyLong_FromLongLong(total);
  });
}

// Reads a state array of a rule; leaves `state` null for None.
template <class T>
bool read_state(PyObject* object, const char* what, const Parameter<T>& p, T*& state) {
  Span<T> found;
  if (object == Py_None) return true;
  if (!read_mutable<T>(object, what, found)) return false;
  state = found.data;
  if (rows_fit(p.n_rows, p.width, p.width, found.size)) return true;
  return PyErr_Format(PyExc_ValueError, "%s must have a number for each of the parameter, got %zd", what, found.size),
         false;
}

PyObject* refuse_constants(ptrdiff_t size) {
  return PyErr_Format(PyExc_ValueError, "constants must have %zd numbers, got %zd", N_CONSTANTS, size);
}

// Reads a parameter from `given` (rows, data, first, second), and the constants of its rule from `numbers`.
template <class T>
bool read_parameter(PyObject* const* given, PyObject* numbers, Parameter<T>& p, Span<const T>& constants) {
  Span<T> data;
  if (!PyTuple_Check(given[0]) || PyTuple_GET_SIZE(given[0]) != 3)
    return refuse_type("rows", "(n_rows, width, step)", given[0]);
  PyObject** rows = &PyTuple_GET_ITEM(given[0], 0);
  if (!read_long(rows[0], "n_rows", p.n_rows) || !read_long(rows[1], "width", p.width) ||
      !read_long(rows[2], "step", p.step) || !read_mutable<T>(given[1], "data", data) ||
      !read<T>(numbers, "constants", constants))
    return false;
  p.data = data.data;
  if (!rows_fit(p.n_rows, p.width, p.step, data.size) || p.step < p.width)
    return PyErr_Format(PyExc_ValueError,
                        "%lld rows of %lld numbers, %lld apart, must not overlap and lie in the %zd "
                        "numbers of data",
                        (long long)p.n_rows, (long long)p.width, (long long)p.step, data.size),
           false;
  if (constants.size != N_CONSTANTS) return refuse_constants(constants.size), false;
  if (given[2] == Py_None && given[3] != Py_None) return refuse_value("second must be None where first is None"), false;
  return read_state<T>(given[2], "first", p, p.first) && read_state<T>(given[3], "second", p, p.second);
}

// update_dense(rows, data, first, second, grad, grad_step, constants): updates all rows of a parameter.
PyObject* update_dense(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  if (!takes("update_dense", n, 7)) return nullptr;
  return by_dtype(arguments[1], "data", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    Parameter<T> parameter = {};
    Span<const T> grad, constants;
    int64_t grad_step;
    if (!read_parameter<T>(arguments, arguments[6], parameter, constants) || !read<T>(arguments[4], "grad", grad) ||
        !read_long(arguments[5], "grad_step", grad_step))
      return nullptr;
    if (!rows_fit(parameter.n_rows, parameter.width, grad_step, grad.size))
      return PyErr_Format(PyExc_ValueError, "grad must have %lld rows of %lld numbers, like data, got %zd numbers",
                          (long long)parameter.n_rows, (long long)parameter.width, grad.size);
    {
      Unlocked unlocked;
      autobatch::update_dense<T>(parameter, grad.data, grad_step, constants.data);
    }
    Py_RETURN_NONE;
  });
}

// update_rows(rows, data, first, second, ids, values, touched, constants, is_lazy): updates rows of a parameter.
PyObject* update_rows(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  if (!takes("update_rows", n, 9)) return nullptr;
  return by_dtype(arguments[1], "data", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    Parameter<T> parameter = {};
    Span<const int64_t> ids;
    Span<const T> values, constants;
    Span<const uint8_t> touched;
    int32_t is_lazy;
    if (!read_parameter<T>(arguments, arguments[7], parameter, constants) || !read<int64_t>(arguments[4], "ids", ids) ||
        !read<T>(arguments[5], "values", values) || !read_flags(arguments[6], "touched", touched) ||
        PyArray_FailUnlessWriteable(reinterpret_cast<PyArrayObject*>(arguments[6]), "touched") < 0 ||
        !read_int(arguments[8], "is_lazy", is_lazy))
      return nullptr;
    if (!rises_strictly(ids, parameter.n_rows) || !rows_fit(ids.size, parameter.width, parameter.width, values.size) ||
        touched.size != parameter.n_rows)
      return refuse_value(
          "ids must strictly increase within the rows of data, values must have a row per id, and touched an element "
          "per row");
    {
      Unlocked unlocked;
      autobatch::update_rows<T>(parameter, ids, values.data, const_cast<uint8_t*>(touched.data), constants.data,
                                is_lazy);
    }
    Py_RETURN_NONE;
  });
}

// changes_all(constants): returns whether plain SGD changes numbers without a gradient.
PyObject* changes_all(PyObject*, PyObject* constants) {
  return by_dtype(constants, "constants", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    Span<const T> numbers;
    if (!read<T>(constants, "constants", numbers)) return nullptr;
    if (numbers.size != N_CONSTANTS) return refuse_constants(numbers.size);
    return PyBool_FromLong(rows_that_change<T>(false, false, numbers.data) == RowsChanged::ALL);
  });
}

// fingerprint(array): returns a hash of the bytes of an array of floats.
PyObject* fingerprint_of(PyObject*, PyObject* array) {
  return by_dtype(array, "array", [&](auto zero) -> PyObject* {
    using T = decltype(zero);
    Span<const T> numbers;
    if (!read<T>(array, "array", numbers)) return nullptr;
    uint64_t found;
    {
      Unlocked unlocked;
      found = fingerprint(reinterpret_cast<const uint8_t*>(numbers.data), numbers.size * (int64_t)sizeof(T));
    }
    return PyLong_FromUnsignedLongLong(found);
  });
}

PyMethodDef functions[] = {fast("call_steps", call_steps),
                           {"step_addresses", step_addresses, METH_NOARGS, nullptr},
                           fast("sum_rows", sum_rows),
                           fast("merge_rows", merge_rows),
                           fast("update_dense", update_dense),
                           fast("update_rows", update_rows),
                           {"changes_all", changes_all, METH_O, nullptr},
                           {"fingerprint", fingerprint_of, METH_O, nullptr},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_run(PyObject* module) {
  return PyModule_AddType(module, &SweepType) == 0 && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace autobatch
