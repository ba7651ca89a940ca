// The Python bindings of this folder; `_native.pyi` documents them.

#include "blas/calling.h"
#include "blas/packed.h"
#include "support/arrays.h"
#include "support/processor.h"

namespace autobatch {
namespace {

constexpr npy_intp MOST_ROWS = INT32_MAX;  // so that the product of two sizes fits in 64 bits

// Reads a float32 array with arbitrary strides, which must be whole elements; null with an error.
PyArrayObject* read_strided(PyObject* object, const char* what, int ndim, bool is_written) {
  if (!PyArray_Check(object) || PyArray_TYPE(reinterpret_cast<PyArrayObject*>(object)) != NPY_FLOAT32)
    return refuse_type(what, "an array of float32", object), nullptr;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  bool fits = PyArray_NDIM(array) == ndim && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
  for (int axis = 0; fits && axis < ndim; axis++)
    fits = PyArray_STRIDE(array, axis) % (npy_intp)sizeof(float) == 0 && PyArray_DIM(array, axis) <= MOST_ROWS;
  if (!fits)
    return PyErr_Format(PyExc_ValueError,
                        "%s must be an aligned array of %d axes, got one of %d with strides that do not fit float32",
                        what, ndim, PyArray_NDIM(array)),
           nullptr;
  if (is_written && PyArray_FailUnlessWriteable(array, what) < 0) return nullptr;
  return array;
}

int64_t step_of(PyArrayObject* array, int axis) { return PyArray_STRIDE(array, axis) / (npy_intp)sizeof(float); }

bool is_contiguous(PyArrayObject* array, int axis) {
  return PyArray_DIM(array, axis) <= 1 || step_of(array, axis) == 1;
}

float* floats_of(PyArrayObject* array) { return static_cast<float*>(PyArray_DATA(array)); }

// Returns whether the processor has the instructions of the native products; if not, sets an error.
bool has_products(bool is_bf16) {
  bool has = is_bf16 ? processor().has_bf16 : processor().has_avx512;
  if (!has)
    PyErr_SetString(PyExc_ValueError, is_bf16 ? "processor must have AVX512_BF16" : "processor must have AVX-512");
  return has;
}

// pack(matrix, panels, is_bf16): packs a matrix for `multiply_packed`.
PyObject* pack(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  int32_t is_bf16;
  Span<uint32_t> panels;
  if (!takes("pack", n_arguments, 3) || !read_int(arguments[2], "is_bf16", is_bf16) || !has_products(is_bf16) ||
      !read_mutable<uint32_t>(arguments[1], "panels", panels))
    return nullptr;
  PyArrayObject* matrix = read_strided(arguments[0], "matrix", 2, false);
  if (!matrix) return nullptr;
  int64_t inner = PyArray_DIM(matrix, 0), n = PyArray_DIM(matrix, 1);
  int64_t row = step_of(matrix, 0), column = is_contiguous(matrix, 1) ? 1 : step_of(matrix, 1);
  if (!is_contiguous(matrix, 0) && column != 1) return refuse_value("matrix must have a contiguous axis, got none");
  if (column != 1) row = 1;  // axis 0 is contiguous: its stride is 1, or irrelevant for a single element
  if (panels.size < panel_words(inner, n, is_bf16))
    return PyErr_Format(PyExc_ValueError, "panels must have room for %lld words of matrix, got %zd",
                        (long long)panel_words(inner, n, is_bf16), panels.size);
  Vec<uint32_t> turned;
  if (!turned.resize(is_bf16 ? PANEL_WIDTH * padded_pairs(inner) : 0)) return PyErr_NoMemory();
  {
    Unlocked unlocked;
    Matrix given = {floats_of(matrix), row, column};
    float* packed = reinterpret_cast<float*>(panels.data);
    is_bf16 ? pack_bf16(given, inner, n, packed, turned.data()) : autobatch::pack(given, inner, n, packed);
  }
  Py_RETURN_NONE;
}

// multiply_packed(rows, panels, out, is_bf16, adds, times): multiplies rows by a packed matrix, `times` times. The
// first axis of `rows` lists copies of the rows, which are used in turn.
PyObject* multiply_packed(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  int32_t is_bf16, adds;
  int64_t times;
  Span<const uint32_t> panels;
  if (!takes("multiply_packed", n_arguments, 6) || !read<uint32_t>(arguments[1], "panels", panels) ||
      !read_int(arguments[3], "is_bf16", is_bf16) || !has_products(is_bf16) || !read_int(arguments[4], "adds", adds) ||
      !read_long(arguments[5], "times", times))
    return nullptr;
  PyArrayObject* rows = read_strided(arguments[0], "rows", 3, false);
  PyArrayObject* out = rows ? read_strided(arguments[2], "out", 2, true) : nullptr;
  if (!out) return nullptr;
  int64_t copies = PyArray_DIM(rows, 0), m = PyArray_DIM(rows, 1), inner = PyArray_DIM(rows, 2),
          n = PyArray_DIM(out, 1);
  if (PyArray_DIM(out, 0) != m || copies == 0 || inner == 0 || !is_contiguous(rows, 2) || !is_contiguous(out, 1) ||
      panels.size < panel_words(inner, n, is_bf16))
    return PyErr_Format(PyExc_ValueError,
                        "rows (copies, m, inner) and out (m, n) must be contiguous and fit the panels of an (inner, n) "
                        "matrix, got rows (%lld, %lld, %lld), out (%lld, %lld) and %zd words of panels",
                        (long long)copies, (long long)m, (long long)inner, (long long)PyArray_DIM(out, 0), (long long)n,
                        panels.size);
  Vec<uint32_t> scratch;
  if (!scratch.resize(is_bf16 ? rows_words(inner) : 0)) return PyErr_NoMemory();
  {
    Unlocked unlocked;
    Size size = {m, n, inner};
    const float* packed = reinterpret_cast<const float*>(panels.data);
    for (int64_t time = 0; time < times; time++) {
      if (unlocked.is_interrupted(m * n + 1)) return nullptr;
      const float* first = floats_of(rows) + time % copies * step_of(rows, 0);
      if (is_bf16)
        multiply_packed_bf16(size, first, step_of(rows, 1), packed, floats_of(out), step_of(out, 0), adds,
                             scratch.data());
      else
        autobatch::multiply_packed(size, first, step_of(rows, 1), packed, floats_of(out), step_of(out, 0), adds);
    }
  }
  Py_RETURN_NONE;
}

// add_outer_bf16(x, y, out, times): adds x' @ y, both rounded to bf16, to `out`, `times` times.
PyObject* add_outer_bf16(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  int64_t times;
  if (!takes("add_outer_bf16", n_arguments, 4) || !has_products(true) || !read_long(arguments[3], "times", times))
    return nullptr;
  PyArrayObject* x = read_strided(arguments[0], "x", 2, false);
  PyArrayObject* y = x ? read_strided(arguments[1], "y", 2, false) : nullptr;
  PyArrayObject* out = y ? read_strided(arguments[2], "out", 2, true) : nullptr;
  if (!out) return nullptr;
  int64_t rows = PyArray_DIM(x, 0), m = PyArray_DIM(x, 1), n = PyArray_DIM(y, 1);
  if (PyArray_DIM(y, 0) != rows || PyArray_DIM(out, 0) != m || PyArray_DIM(out, 1) != n || !is_contiguous(x, 1) ||
      !is_contiguous(y, 1) || !is_contiguous(out, 1))
    return PyErr_Format(PyExc_ValueError,
                        "x (rows, m), y (rows, n) and out (m, n) must have contiguous rows, got x (%lld, %lld), y "
                        "(%lld, %lld) and out (%lld, %lld)",
                        (long long)rows, (long long)m, (long long)PyArray_DIM(y, 0), (long long)n,
                        (long long)PyArray_DIM(out, 0), (long long)PyArray_DIM(out, 1));
  Vec<uint32_t> scratch;
  if (!scratch.resize(outer_words(m, n))) return PyErr_NoMemory();
  {
    Unlocked unlocked;
    for (int64_t time = 0; time < times; time++) {
      if (unlocked.is_interrupted(m * n + 1)) return nullptr;
      autobatch::add_outer_bf16(rows, m, n, floats_of(x), step_of(x, 0), floats_of(y), step_of(y, 0), floats_of(out),
                                step_of(out, 0), scratch.data());
    }
  }
  Py_RETURN_NONE;
}

// Reads a tuple of N ints; `kind` names the expected type in errors.
template <int N>
bool read_tuple(PyObject* tuple, const char* what, const char* kind, int64_t (&ints)[N]) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != N) return refuse_type(what, kind, tuple);
  for (int i = 0; i < N; i++)
    if (!read_long(PyTuple_GET_ITEM(tuple, i), what, ints[i])) return false;
  return true;
}

// repeat_product(times, itemsize, routine, product, beta, copies): calls a BLAS routine by its address, `times` times.
// `copies` holds the number of pairs of operands, which are used in turn, and the strides in bytes from one a, and from
// one b, to the next.
PyObject* repeat_product(PyObject*, PyObject* const* arguments, Py_ssize_t n_arguments) {
  int64_t times, itemsize, routine, product[11], copies[3];
  double beta;
  if (!takes("repeat_product", n_arguments, 6) || !read_long(arguments[0], "times", times) ||
      !read_long(arguments[1], "itemsize", itemsize) || !read_long(arguments[2], "routine", routine) ||
      !read_tuple(arguments[3], "product", "a Gemm", product) || !read_double(arguments[4], "beta", beta) ||
      !read_tuple(arguments[5], "copies", "three ints", copies))
    return nullptr;
  if (!routine || copies[0] < 1 || (itemsize != 4 && itemsize != 8))
    return PyErr_Format(PyExc_ValueError,
                        "routine must be an address, itemsize 4 or 8, and copies[0] at least 1, got routine=%lld, "
                        "itemsize=%lld and copies[0]=%lld",
                        (long long)routine, (long long)itemsize, (long long)copies[0]);
  {
    Unlocked unlocked;
    for (int64_t time = 0; time < times; time++) {
      if (unlocked.is_interrupted(1000)) return nullptr;
      int64_t turn = time % copies[0];
      Gemm now = {product[0], product[1],
                  product[2], product[3],
                  product[4], product[5] + turn * copies[1],
                  product[6], product[7] + turn * copies[2],
                  product[8], product[9],
                  product[10]};
      call_product(routine, itemsize, now, beta);
    }
  }
  Py_RETURN_NONE;
}

// sgemm_address(): returns the address of the native float32 product.
PyObject* sgemm_address(PyObject*, PyObject*) { return PyLong_FromVoidPtr(reinterpret_cast<void*>(sgemm)); }

// find_features(): returns whether the processor supports the native float32 products, the native bf16 products, and
// AMX for the latter.
PyObject* find_features(PyObject*, PyObject*) {
  return Py_BuildValue("NNN", PyBool_FromLong(processor().has_avx512), PyBool_FromLong(processor().has_bf16),
                       PyBool_FromLong(processor().has_amx));
}

// Transposes a matrix in blocks that stay in the cache.
template <class T>
void transpose_matrix(Table<const T> matrix, T* out) {
  constexpr ptrdiff_t BLOCK = 16;
  for (ptrdiff_t top = 0; top < matrix.rows; top += BLOCK)
    for (ptrdiff_t left = 0; left < matrix.columns; left += BLOCK) {
      ptrdiff_t bottom = least(top + BLOCK, matrix.rows), right = least(left + BLOCK, matrix.columns);
      for (ptrdiff_t column = left; column < right; column++)
        for (ptrdiff_t row = top; row < bottom; row++) out[column * matrix.rows + row] = matrix[row][column];
    }
}

template <class T>
PyObject* transpose_of(PyObject* given, PyObject* into) {
  Table<const T> matrix;
  Table<T> out;
  if (!read_table<T>(given, "matrix", matrix) || !read_table<T>(into, "out", out)) return nullptr;
  if (out.rows != matrix.columns || out.columns != matrix.rows)
    return refuse_value("out must have the shape of the transpose, got another");
  if (overlap(matrix.all(), out.all())) return refuse_value("out must not share memory with matrix");
  {
    Unlocked unlocked;
    transpose_matrix(matrix, out.data);
  }
  Py_RETURN_NONE;
}

// transpose(matrix, out): writes the transpose of a contiguous matrix.
PyObject* transpose(PyObject*, PyObject* const* arguments, Py_ssize_t n) {
  if (!takes("transpose", n, 2)) return nullptr;
  bool is_wide =
      PyArray_Check(arguments[0]) && PyArray_TYPE(reinterpret_cast<PyArrayObject*>(arguments[0])) == NPY_FLOAT64;
  return is_wide ? transpose_of<double>(arguments[0], arguments[1]) : transpose_of<float>(arguments[0], arguments[1]);
}

PyMethodDef functions[] = {fast("pack", pack),
                           fast("multiply_packed", multiply_packed),
                           fast("add_outer_bf16", add_outer_bf16),
                           fast("repeat_product", repeat_product),
                           {"sgemm_address", sgemm_address, METH_NOARGS, nullptr},
                           {"find_features", find_features, METH_NOARGS, nullptr},
                           fast("transpose", transpose),
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_blas(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }

}  // namespace autobatch
