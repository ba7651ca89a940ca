// Reads NumPy arrays as type-checked spans, and makes arrays for results.

#pragma once

#include "support/python.h"
#include "support/vec.h"

namespace autobatch {

template <class T>
struct NumpyType;
template <>
struct NumpyType<int32_t> {
  static constexpr int number = NPY_INT32;
  static constexpr const char* name = "int32";
};
template <>
struct NumpyType<int16_t> {
  static constexpr int number = NPY_INT16;
  static constexpr const char* name = "int16";
};
template <>
struct NumpyType<int64_t> {
  static constexpr int number = NPY_INT64;
  static constexpr const char* name = "int64";
};
template <>
struct NumpyType<uint32_t> {
  static constexpr int number = NPY_UINT32;
  static constexpr const char* name = "uint32";
};
template <>
struct NumpyType<uint64_t> {
  static constexpr int number = NPY_UINT64;
  static constexpr const char* name = "uint64";
};
template <>
struct NumpyType<float> {
  static constexpr int number = NPY_FLOAT32;
  static constexpr const char* name = "float32";
};
template <>
struct NumpyType<double> {
  static constexpr int number = NPY_FLOAT64;
  static constexpr const char* name = "float64";
};
template <>
struct NumpyType<bool> {
  static constexpr int number = NPY_BOOL;
  static constexpr const char* name = "bool";
};

// Returns whether an object is a contiguous array of this type and number of dimensions; if not, sets an error.
bool check_array(PyObject* object, const char* what, int type, const char* type_name, int ndim);

// Reads a one-dimensional array; `what` names it in errors.
template <class T>
bool read(PyObject* object, const char* what, Span<const T>& span) {
  if (!check_array(object, what, NumpyType<T>::number, NumpyType<T>::name, 1)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  span = {static_cast<const T*>(PyArray_DATA(array)), PyArray_DIM(array, 0)};
  return true;
}

// Reads an array that will be written to; a ValueError if it is read-only.
template <class T>
bool read_mutable(PyObject* object, const char* what, Span<T>& span) {
  Span<const T> found;
  if (!read<T>(object, what, found)) return false;
  if (PyArray_FailUnlessWriteable(reinterpret_cast<PyArrayObject*>(object), what) < 0) return false;
  span = {const_cast<T*>(found.data), found.size};
  return true;
}

// Reads the `n` rows of a two-dimensional array that will be written to.
template <class T>
bool read_rows(PyObject* object, const char* what, int n, Span<T>* const* rows) {
  if (!check_array(object, what, NumpyType<T>::number, NumpyType<T>::name, 2)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_FailUnlessWriteable(array, what) < 0) return false;
  if (PyArray_DIM(array, 0) != n) {
    PyErr_Format(PyExc_ValueError, "%s must have %d rows, got %zd", what, n, (ptrdiff_t)PyArray_DIM(array, 0));
    return false;
  }
  ptrdiff_t size = PyArray_DIM(array, 1);
  for (int row = 0; row < n; row++) *rows[row] = {static_cast<T*>(PyArray_DATA(array)) + row * size, size};
  return true;
}

// A two-dimensional view of memory owned elsewhere.
template <class T>
struct Table {
  T* data = nullptr;
  ptrdiff_t rows = 0, columns = 0;

  T* operator[](ptrdiff_t row) const { return data + row * columns; }
  Span<const T> all() const { return {data, rows * columns}; }
};

// Reads a table that will be written to; `number` and `name` identify its NumPy type.
template <class T>
bool read_table(PyObject* object, const char* what, Table<T>& table, int number = NumpyType<T>::number,
                const char* name = NumpyType<T>::name, bool is_written = true) {
  if (!check_array(object, what, number, name, 2)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  if (is_written && PyArray_FailUnlessWriteable(array, what) < 0) return false;
  table = {static_cast<T*>(PyArray_DATA(array)), PyArray_DIM(array, 0), PyArray_DIM(array, 1)};
  return true;
}

// Reads a table that will only be read.
template <class T>
bool read_table(PyObject* object, const char* what, Table<const T>& table) {
  Table<T> found;
  if (!read_table<T>(object, what, found, NumpyType<T>::number, NumpyType<T>::name, false)) return false;
  table = {found.data, found.rows, found.columns};
  return true;
}

// Reads an array of bools as bytes, because a byte that is neither 0 nor 1 is not a valid C++ bool.
inline bool read_flags(PyObject* object, const char* what, Span<const uint8_t>& span) {
  if (!check_array(object, what, NPY_BOOL, "bool", 1)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  span = {static_cast<const uint8_t*>(PyArray_DATA(array)), PyArray_DIM(array, 0)};
  return true;
}

// Returns whether offsets start at 0, never decrease, and end at `last`; there must be at least one.
template <class T>
bool rises(Span<const T> ptr, int64_t last) {
  bool falls = false;
  for (ptrdiff_t i = 0; i + 1 < ptr.size; i++) falls |= ptr[i] > ptr[i + 1];
  return !falls && ptr[0] == 0 && ptr[ptr.size - 1] == last;
}

// Returns whether all values lie in low..high-1; high must be at most 2^31. As unsigned ints, values below `low` wrap
// around to large numbers, so one comparison checks both bounds.
inline bool within(Span<const int32_t> values, int64_t low, int64_t high) {
  uint32_t first = (uint32_t)low, n = (uint32_t)(high - low), outside = 0;
  for (int32_t value : values) outside |= (uint32_t)value - first >= n;
  return !outside;
}

inline bool within(Span<const int64_t> values, int64_t low, int64_t high) {
  bool outside = false;
  for (int64_t value : values) outside |= value < low || value >= high;
  return !outside;
}

// Returns whether two arrays share memory. If so, a write to one could change values of the other after they were
// checked.
template <class T, class U>
bool overlap(Span<const T> one, Span<const U> other) {
  uintptr_t a = (uintptr_t)one.data, b = (uintptr_t)other.data;
  return one.size && other.size && a < b + (size_t)other.size * sizeof(U) && b < a + (size_t)one.size * sizeof(T);
}

// Reads a one-dimensional array of records that are laid out as a struct of int64.
template <class T>
bool read_records(PyObject* object, const char* what, Span<const T>& span) {
  if (!check_array(object, what, NPY_VOID, "records", 1)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_ITEMSIZE(array) == sizeof(T) && (uintptr_t)PyArray_DATA(array) % alignof(T) == 0) {
    span = {static_cast<const T*>(PyArray_DATA(array)), PyArray_DIM(array, 0)};
    return true;
  }
  PyErr_Format(PyExc_ValueError, "%s must be records of %d bytes, got records of %d bytes", what, (int)sizeof(T),
               (int)PyArray_ITEMSIZE(array));
  return false;
}

// Read an int of 32 or 64 bits, or a float; false with an error. Objects that would run Python code to become a number
// are refused, because that code could change arrays that were checked before.
bool read_int(PyObject* object, const char* what, int32_t& number);
bool read_long(PyObject* object, const char* what, int64_t& number);
bool read_double(PyObject* object, const char* what, double& number);

// Makes an uninitialized array; null with an error if memory runs out.
template <class T>
Ref make_array(ptrdiff_t size, Span<T>& span) {
  npy_intp shape[1] = {size};
  Ref made(PyArray_SimpleNew(1, shape, NumpyType<T>::number));
  if (made) span = {static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.get()))), size};
  return made;
}

// Makes an uninitialized array of bools, viewed as bytes.
inline Ref make_flags(ptrdiff_t size, Span<uint8_t>& span) {
  npy_intp shape[1] = {size};
  Ref made(PyArray_SimpleNew(1, shape, NPY_BOOL));
  if (made) span = {static_cast<uint8_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.get()))), size};
  return made;
}

// Makes an uninitialized table; null with an error if memory runs out.
template <class T>
Ref make_table(ptrdiff_t rows, ptrdiff_t columns, Table<T>& table) {
  npy_intp shape[2] = {rows, columns};
  Ref made(PyArray_SimpleNew(2, shape, NumpyType<T>::number));
  if (made) table = {static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made.get()))), rows, columns};
  return made;
}

// Copies a span into a new array.
template <class T>
Ref to_array(Span<const T> values) {
  Span<T> span;
  Ref made = make_array<T>(values.size, span);
  if (made && values.size) memcpy(span.data, values.data, (size_t)values.size * sizeof(T));
  return made;
}

// Makes an array from a vector. Takes over its memory, unless the vector is so small that copying is cheaper.
template <class T>
Ref adopt(Vec<T>& values) {
  constexpr ptrdiff_t FEW_BYTES = 1 << 14;
  if (values.size() * (ptrdiff_t)sizeof(T) <= FEW_BYTES) return to_array<T>(values);
  npy_intp shape[1] = {values.size()};
  Ref owner(
      PyCapsule_New(values.data(), nullptr, [](PyObject* capsule) { free(PyCapsule_GetPointer(capsule, nullptr)); }));
  if (!owner) return Ref();
  // From here on the capsule alone owns the memory, and frees it even if no array is made.
  Ref made(PyArray_SimpleNewFromData(1, shape, NumpyType<T>::number, values.release()));
  if (!made || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made.get()), owner.release()) < 0) return Ref();
  return made;
}

}  // namespace autobatch
