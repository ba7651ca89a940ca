#include "plan/tiles.h"

namespace autobatch {
namespace {

constexpr int64_t ROUND_ROWS = 16;           // a tile has a multiple of this many rows, for whole register tiles
constexpr int64_t WHOLE = int64_t(1) << 40;  // the row limit of types whose batches are not cut
constexpr int64_t MOST_WORDS = int64_t(1) << 60;

// The offsets of the fields of a tile; autobatch/compiler/writer.py documents the fields.
struct Fields {
  explicit Fields(int32_t n_domains)
      : rows(2),
        inputs(2 + n_domains),
        gradients(inputs + n_domains),
        saved(gradients + n_domains),
        forward(saved + n_domains),
        backward(forward + n_domains),
        kept(backward + n_domains),
        outputs(kept + 1) {}
  static constexpr int64_t START = 0, SHIFT = 1;
  int64_t rows, inputs, gradients, saved, forward, backward, kept, outputs;
};

// Writes the tiles of a type. Positions in memory are computed as unsigned ints: inputs are not fully checked, and
// unsigned overflow is not undefined behavior.
class TypeTiles {
 public:
  TypeTiles(const PlanArrays& plan, const CellSizes& sizes, int32_t type, uint64_t kept_base, bool has_whole)
      : plan_(plan),
        sizes_(sizes),
        type_(type),
        first_block_(plan.block_ptr[type]),
        n_domains_(plan.block_ptr[type + 1] - first_block_),
        at_(n_domains_),
        kept_base_(kept_base),
        has_whole_(has_whole) {}
  // Writes the tiles of all batches; then those of all rows, if there are any; then one tile of all rows per strip of
  // the gradients. Returns the elements of scratch memory that tiles use in turn.
  int64_t fill(int64_t* words, int32_t n_threads) {
    next_ = words;
    int32_t first = -1;
    int64_t start = 0, most = sizes_.most_rows[type_];
    for (int32_t batch = 0; batch < plan_.n_batches(); batch++) {
      if (plan_.batch_type[batch] != type_) continue;
      if (first < 0) first = batch;
      cut(batch, start, start + plan_.n_rows(batch), rows_of_tile(plan_.n_rows(batch), most, n_threads), -1);
      start += plan_.n_rows(batch);
    }
    if (has_whole_) cut(first, 0, start, rows_of_tile(start, most, n_threads), -1);
    for (int32_t strip = 0; sizes_.has_backward() && strip < n_threads; strip++)
      cut(first, 0, start, start > 0 ? start : 1, strip);
    return needed_;
  }

 private:
  void cut(int32_t batch, int64_t begin, int64_t end, int64_t at_once, int32_t strip) {
    for (int64_t start = begin; start < end; start += at_once)
      write(batch, begin, start, at_once < end - start ? at_once : end - start, strip);
  }
  // Writes the tile of some rows; `begin` is the first row of the batch, and `strip` is -1 for tiles that need scratch
  // memory.
  void write(int32_t batch, int64_t begin, int64_t start, int64_t n_rows, int32_t strip) {
    uint64_t* row = reinterpret_cast<uint64_t*>(next_);
    row[Fields::START] = (uint64_t)start;
    row[Fields::SHIFT] = (uint64_t)plan_.gradient_offset;
    for (int32_t domain = 0; domain < n_domains_; domain++) {
      int32_t block = first_block_ + domain;
      uint64_t own = (uint64_t)start, before = (uint64_t)(start - begin), n = (uint64_t)n_rows;
      if (domain > 0) {
        const int64_t* ptr = plan_.segments_of(block);
        own = (uint64_t)ptr[start];
        before = own - (uint64_t)ptr[begin];
        n = (uint64_t)ptr[start + n_rows] - own;
      }
      row[at_.rows + domain] = n;
      row[at_.inputs + domain] =
          (uint64_t)plan_.base[plan_.base_ptr[batch] + domain] + before * (uint64_t)plan_.block_width[block];
      row[at_.gradients + domain] = row[at_.inputs + domain] + (uint64_t)plan_.gradient_offset;
      row[at_.saved + domain] = own * (uint64_t)sizes_.saved[block];
      if (plan_.gradient_offset) row[at_.saved + domain] += (uint64_t)plan_.saved_base[block];
    }
    // Scratch memory holds the elements per tile, then the rows of each domain; in forward also the kept rows, unless
    // they lie in persistent scratch because steps run for all rows.
    uint64_t kept_width = (uint64_t)sizes_.kept[type_];
    for (int stage = 0; strip < 0 && stage < (int)sizes_.scratch.rows; stage++) {
      uint64_t free = (uint64_t)sizes_.own[type_];
      for (int32_t domain = 0; domain < n_domains_; domain++) {
        row[(stage ? at_.backward : at_.forward) + domain] = free;
        free += row[at_.rows + domain] * (uint64_t)sizes_.scratch[stage][first_block_ + domain];
      }
      if (stage == 0 && !has_whole_) {
        row[at_.kept] = free;
        free += (uint64_t)n_rows * kept_width;
      }
      if ((int64_t)free > needed_) needed_ = (int64_t)free;
    }
    if (has_whole_) row[at_.kept] = kept_base_ + (uint64_t)start * kept_width;
    uint64_t* output = row + at_.outputs;
    for (int32_t out = plan_.out_ptr[type_]; out < plan_.out_ptr[type_ + 1]; out++) {
      int32_t block = plan_.out_block[out];
      *output++ =
          (uint64_t)plan_.dest_base[out] + (uint64_t)(block ? plan_.segments_of(first_block_ + block)[start] : start);
    }
    *output++ = (uint64_t)(strip < 0 ? 0 : strip);
    next_ = reinterpret_cast<int64_t*>(output);
  }

  const PlanArrays& plan_;
  const CellSizes& sizes_;
  int32_t type_, first_block_, n_domains_;
  Fields at_;
  uint64_t kept_base_;
  bool has_whole_;
  int64_t* next_ = nullptr;
  int64_t needed_ = 0;
};

// Reads the address of a one-dimensional array.
bool read_address(PyObject* object, const char* what, int type, const char* type_name, const void*& address,
                  ptrdiff_t& size) {
  if (!check_array(object, what, type, type_name, 1)) return false;
  PyArrayObject* array = reinterpret_cast<PyArrayObject*>(object);
  address = PyArray_DATA(array);
  size = PyArray_DIM(array, 0);
  return true;
}

// Returns whether the arrays of a plan fit each other. The order matters: each check relies on the previous ones.
bool fits(const PlanArrays& plan, ptrdiff_t n_dest) {
  ptrdiff_t n_outputs = plan.out_block.size;
  int64_t n_rows = plan.batch_ptr.size ? plan.batch_ptr[plan.batch_ptr.size - 1] : 0;
  if (!plan.block_ptr.size || plan.block_rows.size > INT32_MAX || plan.batch_type.size >= INT32_MAX ||
      !rises(plan.block_ptr, plan.n_blocks()) || plan.out_ptr.size != plan.block_ptr.size ||
      !rises(plan.out_ptr, n_outputs) || plan.batch_ptr.size != plan.batch_type.size + 1 || plan.batch_ptr[0] != 0 ||
      !rises(plan.batch_ptr, n_rows) || !within(plan.batch_type, 0, plan.n_types()) ||
      !within(plan.block_rows, 0, INT64_MAX) || plan.block_width.size != plan.n_blocks() ||
      plan.block_ints.size != plan.n_blocks() || plan.block_floats.size != plan.n_blocks() ||
      (plan.gradient_offset && plan.saved_base.size != plan.n_blocks()) || plan.dest_base.size != n_outputs + 1 ||
      plan.adds.size != n_dest || !within(plan.dest_base, 0, plan.dest_ptr.size) ||
      plan.segment_base.size != plan.n_blocks() + 1 || !rises(plan.segment_base, plan.segments.size) ||
      plan.base_ptr.size != plan.batch_ptr.size || !rises(plan.base_ptr, plan.base.size))
    return false;
  for (int32_t type = 0; type < plan.n_types(); type++) {
    int32_t first = plan.block_ptr[type], n = plan.block_ptr[type + 1] - first;
    if (!n || !within(plan.out_block.part(plan.out_ptr[type], plan.out_ptr[type + 1]), 0, n)) return false;
    for (int32_t block = first + 1; block < first + n; block++)
      if (plan.segment_base[block + 1] - plan.segment_base[block] != plan.block_rows[first] + 1) return false;
  }
  Vec<int64_t> n_placed;
  if (!n_placed.assign(plan.n_types(), 0)) return false;
  for (int32_t batch = 0; batch < plan.n_batches(); batch++) {
    int32_t type = plan.batch_type[batch];
    n_placed[type] += plan.n_rows(batch);
    if (plan.base_ptr[batch + 1] - plan.base_ptr[batch] != plan.block_ptr[type + 1] - plan.block_ptr[type])
      return false;
  }
  for (int32_t type = 0; type < plan.n_types(); type++)
    if (n_placed[type] != plan.block_rows[plan.block_ptr[type]]) return false;
  return true;
}

}  // namespace

bool read_plan_arrays(PyObject* tuple, PlanArrays& plan) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 21) return refuse_type("plan", "PlanArrays", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  bool is_wide = PyArray_Check(parts[10]) && PyArray_TYPE(reinterpret_cast<PyArrayObject*>(parts[10])) == NPY_INT64;
  ptrdiff_t n_dest, n_ints, n_floats;
  if (!read_long(parts[4], "gradient_offset", plan.gradient_offset) ||
      !read<int32_t>(parts[0], "batch_type", plan.batch_type) ||
      !read<int32_t>(parts[1], "batch_ptr", plan.batch_ptr) || !read<int64_t>(parts[2], "base_ptr", plan.base_ptr) ||
      !read<int64_t>(parts[3], "base", plan.base) || !read<int64_t>(parts[5], "saved_base", plan.saved_base) ||
      !read<int64_t>(parts[6], "segments", plan.segments) ||
      !read<int64_t>(parts[7], "segment_base", plan.segment_base) ||
      !read<int64_t>(parts[8], "dest_base", plan.dest_base) || !read<int64_t>(parts[9], "dest_ptr", plan.dest_ptr) ||
      !read_address(parts[10], "dest", is_wide ? NPY_INT64 : NPY_INT32, "int32 or int64", plan.dest, n_dest) ||
      !read_flags(parts[11], "adds", plan.adds) ||
      !read_address(parts[12], "ints", NPY_INT32, "int32", plan.ints, n_ints) ||
      !read_address(parts[13], "floats", NPY_FLOAT64, "float64", plan.floats, n_floats) ||
      !read<int64_t>(parts[14], "block_rows", plan.block_rows) ||
      !read<int32_t>(parts[15], "block_ptr", plan.block_ptr) ||
      !read<int32_t>(parts[16], "block_width", plan.block_width) ||
      !read<int32_t>(parts[17], "block_ints", plan.block_ints) ||
      !read<int32_t>(parts[18], "block_floats", plan.block_floats) ||
      !read<int32_t>(parts[19], "out_ptr", plan.out_ptr) || !read<int32_t>(parts[20], "out_block", plan.out_block))
    return false;
  if (fits(plan, n_dest)) return true;
  return PyErr_Format(PyExc_ValueError,
                      "plan must have arrays that fit each other, got %zd batches, %zd pointers to blocks, %zd blocks, "
                      "%zd outputs and %zd destinations",
                      plan.batch_type.size, plan.block_ptr.size, plan.block_rows.size, plan.out_block.size, n_dest),
         false;
}

bool read_cell_sizes(PyObject* tuple, int32_t n_types, int32_t n_blocks, CellSizes& sizes) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 7) return refuse_type("sizes", "CellSizes", tuple);
  PyObject** parts = &PyTuple_GET_ITEM(tuple, 0);
  if (!read<int64_t>(parts[0], "saved", sizes.saved) || !read_table<int64_t>(parts[1], "scratch", sizes.scratch) ||
      !read<int64_t>(parts[2], "fields", sizes.fields) || !read<int64_t>(parts[3], "own", sizes.own) ||
      !read<int64_t>(parts[4], "kept", sizes.kept) || !read<int64_t>(parts[5], "most_rows", sizes.most_rows) ||
      !check_array(parts[6], "steps", NPY_INT64, "int64", 3))
    return false;
  PyArrayObject* steps = reinterpret_cast<PyArrayObject*>(parts[6]);
  sizes.steps = {static_cast<const int64_t*>(PyArray_DATA(steps)), PyArray_SIZE(steps)};
  constexpr int64_t MOST_STEPS = 1 << 20;
  bool fits = sizes.saved.size == n_blocks && (sizes.scratch.rows == 1 || sizes.scratch.rows == 2) &&
              sizes.scratch.columns == n_blocks && sizes.fields.size == n_types && sizes.own.size == n_types &&
              sizes.kept.size == n_types && sizes.most_rows.size == n_types && PyArray_DIM(steps, 0) == 3 &&
              PyArray_DIM(steps, 1) == n_types && PyArray_DIM(steps, 2) == 3 && within(sizes.steps, 0, MOST_STEPS) &&
              within(sizes.fields, 0, INT32_MAX);
  if (!fits)
    PyErr_Format(PyExc_ValueError,
                 "sizes must be those of %d types and %d blocks, got saved (%zd), scratch (%zd, %zd), fields (%zd), "
                 "own (%zd), kept (%zd), most_rows (%zd) and steps (%zd, %zd, %zd)",
                 n_types, n_blocks, sizes.saved.size, sizes.scratch.rows, sizes.scratch.columns, sizes.fields.size,
                 sizes.own.size, sizes.kept.size, sizes.most_rows.size, (ptrdiff_t)PyArray_DIM(steps, 0),
                 (ptrdiff_t)PyArray_DIM(steps, 1), (ptrdiff_t)PyArray_DIM(steps, 2));
  return fits;
}

bool fit(const CellSizes& sizes, const PlanArrays& plan) {
  bool fits = true;
  for (int32_t batch = 0; fits && batch < plan.n_batches(); batch++) {
    int32_t type = plan.batch_type[batch], n_domains = plan.block_ptr[type + 1] - plan.block_ptr[type];
    int64_t n_outputs = plan.out_ptr[type + 1] - plan.out_ptr[type];
    fits = sizes.most_rows[type] > 0 && sizes.fields[type] == Fields(n_domains).outputs + n_outputs + 1;
  }
  return fits;
}

int64_t rows_of_tile(int64_t n_rows, int64_t most, int64_t n_threads) {
  if (most == WHOLE || !n_rows) return n_rows > 1 ? n_rows : 1;
  int64_t share = (n_rows + n_threads - 1) / n_threads, whole = (share + ROUND_ROWS - 1) / ROUND_ROWS * ROUND_ROWS;
  return most < whole ? most : whole;
}

int64_t count_tiles(int64_t n_rows, int64_t most, int64_t n_threads) {
  int64_t at_once = rows_of_tile(n_rows, most, n_threads);
  return (n_rows + at_once - 1) / at_once;
}

bool make_tiles(const PlanArrays& plan, const CellSizes& sizes, int32_t n_threads, Tiles& tiles) {
  int32_t n_types = plan.n_types();
  Vec<int64_t> n_batches;
  if (!n_batches.assign(n_types, 0) || !tiles.counts.assign(2 * (ptrdiff_t)n_types, 0) ||
      !tiles.ptr.assign((ptrdiff_t)n_types + 1, 0) || !tiles.mean_rows.assign(2 * (ptrdiff_t)plan.n_blocks(), 0))
    return false;
  for (int32_t batch = 0; batch < plan.n_batches(); batch++) {
    int32_t type = plan.batch_type[batch];
    n_batches[type]++;
    tiles.counts[2 * (ptrdiff_t)type] += count_tiles(plan.n_rows(batch), sizes.most_rows[type], n_threads);
  }
  for (int32_t type = 0; type < n_types; type++) {
    int64_t n_rows = plan.block_rows[plan.block_ptr[type]], most = sizes.most_rows[type];
    int64_t* counts = tiles.counts.data() + 2 * (ptrdiff_t)type;
    // Tiles of all rows only pay if batches are smaller than tiles; see autobatch.backends.tables.py.
    if (n_rows && n_rows / n_batches[type] < most) counts[1] = count_tiles(n_rows, most, n_threads);
    int64_t n_tiles = counts[0] + counts[1] + (n_rows && sizes.has_backward() ? n_threads : 0);
    if (n_tiles && sizes.fields[type] > (MOST_WORDS - tiles.ptr[type]) / n_tiles) return false;
    tiles.ptr[type + 1] = tiles.ptr[type] + n_tiles * sizes.fields[type];
  }
  if (!tiles.words.assign(tiles.ptr[n_types], 0)) return false;
  uint64_t kept_size = 0;
  for (int32_t type = 0; type < n_types; type++) {
    if (!n_batches[type]) continue;
    const int64_t* counts = tiles.counts.data() + 2 * (ptrdiff_t)type;
    int64_t needed =
        TypeTiles(plan, sizes, type, kept_size, counts[1] > 0).fill(tiles.words.data() + tiles.ptr[type], n_threads);
    if (needed > tiles.scratch_size) tiles.scratch_size = needed;
    for (int32_t block = plan.block_ptr[type]; block < plan.block_ptr[type + 1]; block++)
      for (int kind = 0; kind < 2; kind++)
        tiles.mean_rows[2 * (ptrdiff_t)block + kind] = counts[kind] ? plan.block_rows[block] / counts[kind] : 0;
    if (counts[1]) kept_size += (uint64_t)plan.block_rows[plan.block_ptr[type]] * (uint64_t)sizes.kept[type];
  }
  tiles.kept_size = (int64_t)kept_size;
  return true;
}

}  // namespace autobatch
