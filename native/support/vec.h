// Spans and growable vectors of plain data. A vector that cannot grow returns false; nothing throws.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace autobatch {

// Distinguishes the placement `operator new` below from the standard library's, which is not used.
enum class At { PLACE };

}  // namespace autobatch

inline void* operator new(size_t, void* place, autobatch::At) noexcept { return place; }

namespace autobatch {

// Makes an object, which `discard` destroys and frees; null if memory runs out.
template <class T>
T* make() {
  void* place = malloc(sizeof(T));
  return place ? new (place, At::PLACE) T() : nullptr;
}

template <class T>
void discard(T* object) {
  if (!object) return;
  object->~T();
  free(object);
}

// Contiguous elements owned elsewhere.
template <class T>
struct Span {
  T* data = nullptr;
  ptrdiff_t size = 0;

  T& operator[](ptrdiff_t i) const { return data[i]; }
  T* begin() const { return data; }
  T* end() const { return data + size; }
  Span part(ptrdiff_t first, ptrdiff_t stop) const { return {data + first, stop - first}; }
  operator Span<const T>() const { return {data, size}; }
};

// Reverses the order of elements.
template <class T>
void turn(Span<T> values) {
  for (ptrdiff_t i = 0; i < values.size / 2; i++) {
    T first = values[i];
    values[i] = values[values.size - 1 - i];
    values[values.size - 1 - i] = first;
  }
}

// Sorts elements by Shell's sort, which is not stable.
template <class T, class Before>
void sort(Span<T> values, Before is_before) {
  ptrdiff_t gap = 1;
  while (gap < values.size) gap = 3 * gap + 1;
  for (; gap > 0; gap /= 3)
    for (ptrdiff_t i = gap; i < values.size; i++) {
      T moved = values[i];
      ptrdiff_t k = i;
      for (; k >= gap && is_before(moved, values[k - gap]); k -= gap) values[k] = values[k - gap];
      values[k] = moved;
    }
}

inline void sort(Span<int32_t> values) {
  sort(values, [](int32_t a, int32_t b) { return a < b; });
}

// A vector of plain data, which `realloc` may move. `reserve` and `resize` return false if memory runs out, and then
// change nothing.
template <class T>
class Vec {
 public:
  Vec() = default;
  Vec(const Vec&) = delete;
  Vec& operator=(const Vec&) = delete;
  Vec(Vec&& other) : data_(other.data_), size_(other.size_), room_(other.room_) {
    other.data_ = nullptr;
    other.size_ = other.room_ = 0;
  }
  // Swaps, so that `other` frees the memory that this vector had.
  Vec& operator=(Vec&& other) {
    swap(data_, other.data_), swap(size_, other.size_), swap(room_, other.room_);
    return *this;
  }
  ~Vec() {
    if (data_) free(data_);
  }

  // Makes room for this many more elements.
  bool reserve(ptrdiff_t more) {
    if (size_ + more <= room_) return true;
    ptrdiff_t room = room_ * 2 > size_ + more ? room_ * 2 : size_ + more + 16;
    void* grown = realloc(data_, (size_t)room * sizeof(T));
    if (!grown) return false;
    data_ = static_cast<T*>(grown);
    room_ = room;
    return true;
  }
  // Sets the size; new elements are uninitialized.
  bool resize(ptrdiff_t size) {
    if (size < 0) return false;  // the size is a sum that overflowed
    if (size > size_ && !reserve(size - size_)) return false;
    size_ = size;
    return true;
  }
  // Sets the size and all elements.
  bool assign(ptrdiff_t size, T value) {
    if (!resize(size)) return false;
    for (ptrdiff_t i = 0; i < size; i++) data_[i] = value;
    return true;
  }
  // Replaces the contents by a copy of a span.
  bool copy(Span<const T> values) {
    if (!resize(values.size)) return false;
    if (values.size) memcpy(data_, values.data, (size_t)values.size * sizeof(T));
    return true;
  }
  bool push(T value) {
    if (!reserve(1)) return false;
    data_[size_++] = value;
    return true;
  }
  // Removes and returns the last element.
  T pop() { return data_[--size_]; }
  // Removes the first `n` elements.
  void drop_first(ptrdiff_t n) {
    size_ -= n;
    if (n && size_) memmove(data_, data_ + n, (size_t)size_ * sizeof(T));
  }
  // Appends without a check: `reserve` must have made room.
  void append(T value) { data_[size_++] = value; }
  // Hands the memory over to the caller, who frees it.
  T* release() {
    T* data = data_;
    data_ = nullptr;
    size_ = room_ = 0;
    return data;
  }
  // Frees memory beyond this many elements.
  void shrink(ptrdiff_t room) {
    if (room_ <= room || size_ > room) return;
    void* less = realloc(data_, (size_t)(room ? room : 1) * sizeof(T));
    if (less) {
      data_ = static_cast<T*>(less);
      room_ = room ? room : 1;
    }
  }

  T& operator[](ptrdiff_t i) { return data_[i]; }
  const T& operator[](ptrdiff_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  ptrdiff_t size() const { return size_; }
  ptrdiff_t n_bytes() const { return room_ * (ptrdiff_t)sizeof(T); }
  T& back() { return data_[size_ - 1]; }
  operator Span<T>() { return {data_, size_}; }
  operator Span<const T>() const { return {data_, size_}; }

 private:
  template <class X>
  static void swap(X& x, X& y) {
    X before = x;
    x = y;
    y = before;
  }

  T* data_ = nullptr;
  ptrdiff_t size_ = 0, room_ = 0;
};

// Discards the objects that the pointers of a vector own, and destroys the vector; other code frees the vector's own
// memory.
template <class T>
void free_all(Vec<T*>& pointers) {
  for (ptrdiff_t i = 0; i < pointers.size(); i++) discard(pointers[i]);
  pointers.~Vec();
}

}  // namespace autobatch
