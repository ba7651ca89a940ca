// The C APIs of Python and NumPy, and a class that owns references.
//
// Functions that can fail return nullptr or false with a Python error set, unless stated otherwise. Nothing throws.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL autobatch_numpy
#ifndef AUTOBATCH_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <string.h>

namespace autobatch {

// Owns a reference to a Python object, or is null.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref(Ref&& other) : object_(other.release()) {}
  Ref& operator=(Ref&& other) {
    PyObject* before = object_;
    object_ = other.release();
    Py_XDECREF(before);  // last, because it may run code that sees this reference
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  // Makes a new reference to a borrowed object; null stays null.
  static Ref borrowed(PyObject* object) { return Ref(Py_XNewRef(object)); }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

  // Hands the reference over to the caller.
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_ = nullptr;
};

// Calls an object with one or two arguments; a RecursionError if calls nest too deeply, which can happen without a
// Python frame in between.
Ref call_object(PyObject* callable, PyObject* first, PyObject* second = nullptr);

// Describes a method that takes its arguments as an array.
inline PyMethodDef fast(const char* name, PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

// Returns whether a function was given n arguments; if not, sets a TypeError.
inline bool takes(const char* function, Py_ssize_t given, Py_ssize_t n) {
  if (given != n) PyErr_Format(PyExc_TypeError, "%s must be given %zd arguments, got %zd", function, n, given);
  return given == n;
}

// Sets a ValueError; returns null.
inline PyObject* refuse_value(const char* message) { return PyErr_SetString(PyExc_ValueError, message), nullptr; }

// Sets an `autobatch.errors.DataError`; `format` is that of `PyErr_Format`.
void set_data_error(const char* format, ...);

// Sets a TypeError for an argument of the wrong type; returns false.
inline bool refuse_type(const char* what, const char* kind, PyObject* given) {
  return PyErr_Format(PyExc_TypeError, "%s must be %s, got %.80s", what, kind, Py_TYPE(given)->tp_name), false;
}

// Returns null with a MemoryError, or with the error that is set already.
inline PyObject* fail() { return PyErr_Occurred() ? nullptr : PyErr_NoMemory(); }

// Releases the interpreter lock for its lifetime; no Python object may be touched meanwhile.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  // Counts units of work of about a nanosecond each. After every BETWEEN_SIGNALS units, lets Python handle signals such
  // as Ctrl-C, and returns whether that set an error.
  bool is_interrupted(int64_t work) {
    if ((left_ -= work) > 0) return false;
    left_ = BETWEEN_SIGNALS;
    PyEval_RestoreThread(state_);
    bool is_set = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return is_set;
  }
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static constexpr int64_t BETWEEN_SIGNALS = 20'000'000;
  PyThreadState* state_;
  int64_t left_ = BETWEEN_SIGNALS;
};

}  // namespace autobatch
