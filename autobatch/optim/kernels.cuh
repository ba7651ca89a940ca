// Optimizer steps and gradient clipping on a device. A launch processes a list of entries, one per parameter, which
// `on_device.py` writes. The numbers of an entry are cut into pieces, and the blocks share the pieces.
//
// Results are bit-identical to `native/run/optimizer.cpp`: the same operations in the same order, each rounded.

typedef long long int64;

const int THREADS = 256;  // per block
const int PIECE = 1024;   // numbers that a block processes at a time
const int WARPS = THREADS / 32;

enum Rows { ALL, GIVEN, SPARSE };  // see `Entry.rows`

struct Entry {
    int64 end;             // the number of pieces of this entry and of all earlier ones
    int64 data;            // the address of the parameter
    int64 first, second;   // the addresses of its state arrays, whose rows are contiguous, or 0
    int64 gradient;        // the address of its gradient
    int64 ids;             // the address of the increasing ids of the gradient's rows, if it does not have all rows
    int64 n_ids;
    int64 rows;            // the rows that change: ALL, which all have a row of the gradient; GIVEN, those with ids; or
                           // SPARSE, all, with a gradient of zero for rows without an id
    int64 size;            // numbers that change
    int64 width;           // numbers per row
    int64 data_step, gradient_step;  // row strides
    int64 is_wide;         // whether numbers are double instead of float
    int64 constants[9];    // the constants of the rule, each in the first bytes of a word
};

#ifdef AUTOBATCH_ON_HOST
template <class real> real plus(real x, real y) { return x + y; }
template <class real> real minus(real x, real y) { return x - y; }
template <class real> real times(real x, real y) { return x * y; }
template <class real> real over(real x, real y) { return x / y; }
template <class real> real root(real x) { return sqrt(x); }
#else  // rounds each operation: never fuses a multiplication and an addition
__device__ inline float plus(float x, float y) { return __fadd_rn(x, y); }
__device__ inline double plus(double x, double y) { return __dadd_rn(x, y); }
__device__ inline float minus(float x, float y) { return __fsub_rn(x, y); }
__device__ inline double minus(double x, double y) { return __dsub_rn(x, y); }
__device__ inline float times(float x, float y) { return __fmul_rn(x, y); }
__device__ inline double times(double x, double y) { return __dmul_rn(x, y); }
__device__ inline float over(float x, float y) { return __fdiv_rn(x, y); }
__device__ inline double over(double x, double y) { return __ddiv_rn(x, y); }
__device__ inline float root(float x) { return __fsqrt_rn(x); }
__device__ inline double root(double x) { return __dsqrt_rn(x); }
#endif

// Returns the index of the first int that is larger than `number` (a binary search), or n; the ints increase and have a
// stride of `step`.
__device__ inline int64 count_up_to(const int64 *ints, int64 n, int64 step, int64 number) {
    int64 begin = 0;
    while (n > 0) {
        int64 half = n / 2;
        if (ints[(begin + half) * step] <= number) begin += half + 1, n -= half + 1;
        else n = half;
    }
    return begin;
}

// A piece: its entry, the first number that this thread processes, and the end of the piece.
struct Piece {
    const Entry &entry;
    int64 begin, end;
};

// Finds a piece by its number. `end` is the first word of an entry, so the ends of all entries are ints with a stride
// of one entry.
__device__ inline Piece find_piece(const Entry *entries, int64 n, int64 number) {
    int64 at = count_up_to(&entries->end, n, sizeof(Entry) / sizeof(int64), number);
    int64 first = (number - (at ? entries[at - 1].end : 0)) * PIECE, size = entries[at].size;
    return {entries[at], first + threadIdx.x, first + PIECE < size ? first + PIECE : size};
}

// The row and the column of number i of an entry. Divides 32-bit numbers if it can, which is faster.
struct Place {
    int64 row, column;

    __device__ Place(const Entry &entry, int64 i) {
        if (entry.width == entry.size) row = 0;
        else if (entry.size >> 31) row = i / entry.width;
        else row = (unsigned)i / (unsigned)entry.width;
        column = i - row * entry.width;
    }
};

// Updates number i of an entry and its state; c are the constants of the rule, in the order of `optimizer.h`.
template <class real> __device__ inline void change(const Entry &entry, const real *c, int64 i) {
    const Place place(entry, i);
    const int64 *ids = (const int64 *)entry.ids;
    int64 row = place.row, from = row;
    if (entry.rows == GIVEN) row = ids[from];
    if (entry.rows == SPARSE) {
        from = count_up_to(ids, entry.n_ids, 1, row) - 1;
        if (from >= 0 && ids[from] != row) from = -1;
    }
    int64 own = row * entry.width + place.column;
    real *data = (real *)entry.data + row * entry.data_step + place.column;
    real *first = (real *)entry.first + own, *second = (real *)entry.second + own;
    real g = from < 0 ? (real)0 : ((const real *)entry.gradient)[from * entry.gradient_step + place.column];
    real x = *data;
    if (!entry.first) {  // lr, decay
        if (c[1] != 0) g = plus(times(x, c[1]), g);
        *data = minus(x, times(g, c[0]));
    } else if (!entry.second) {  // lr, decay, momentum, nesterov
        if (c[1] != 0) g = plus(times(x, c[1]), g);
        real v = plus(times(*first, c[2]), g);
        *first = v;
        if (c[3] != 0) v = plus(times(v, c[2]), g);
        *data = minus(x, times(v, c[0]));
    } else {  // rate, decay, beta_1, beta_2, 1 - each, root, eps, shrink
        x = times(x, c[8]);
        if (c[1] != 0) g = plus(times(x, c[1]), g);
        real m = plus(times(*first, c[2]), times(g, c[4]));
        real v = plus(times(*second, c[3]), times(times(g, g), c[5]));
        *first = m, *second = v;
        *data = minus(x, times(over(m, plus(over(root(v), c[6]), c[7])), c[0]));
    }
}

// Updates the numbers of a piece.
template <class real> __device__ inline void change_all(const Piece &piece) {
    real c[9];
    for (int k = 0; k < 9; ++k) c[k] = *(const real *)&piece.entry.constants[k];
    for (int64 i = piece.begin; i < piece.end; i += THREADS) change(piece.entry, c, i);
}

// Updates all numbers of all parameters, unless `finite` is the address of a bool that is false.
extern "C" __global__ void __launch_bounds__(THREADS, 4) update(int64 entries_at, int64 n, int64 finite) {
    if (finite && !*(const bool *)finite) return;
    const Entry *entries = (const Entry *)entries_at;
    for (int64 at = blockIdx.x; at < entries[n - 1].end; at += gridDim.x) {
        const Piece piece = find_piece(entries, n, at);
        if (piece.entry.is_wide) change_all<double>(piece);
        else change_all<float>(piece);
    }
}

// The arguments of clipping; `measure` writes the sums of squares that `scale` reads.
struct Clipping {
    int64 entries, n;     // the address and the number of the entries
    double max_norm;
    int64 sums;           // the address of the sum of squares of each piece
    int64 squares;        // the address of the sum of squares of each entry
    int64 n_done;         // the address of the number of blocks that are done, which is 0 between launches
    int64 finite;         // the address of a bool that is set to false if a sum is not finite, or 0
};

// Returns the sum of one number per thread of the block, to all its threads.
__device__ double add_up(double x) {
    __shared__ double sums[WARPS];
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int warp = 0; warp < WARPS; ++warp) x += sums[warp];
    __syncthreads();
    return x;
}

template <class real> __device__ real &gradient_of(const Entry &entry, int64 i) {
    const Place place(entry, i);
    return ((real *)entry.gradient)[place.row * entry.gradient_step + place.column];
}

// Sums the squares of each gradient. The blocks sum those of pieces, and the last block to finish adds them up for each
// entry, always in the same order.
extern "C" __global__ void __launch_bounds__(THREADS, 4) measure(int64 clipping_at, int64, int64) {
    const Clipping &clipping = *(const Clipping *)clipping_at;
    const Entry *entries = (const Entry *)clipping.entries;
    double *sums = (double *)clipping.sums, *squares = (double *)clipping.squares;
    for (int64 at = blockIdx.x; at < entries[clipping.n - 1].end; at += gridDim.x) {
        const Piece piece = find_piece(entries, clipping.n, at);
        double total = 0;
        for (int64 i = piece.begin; i < piece.end; i += THREADS) {
            double x = piece.entry.is_wide ? gradient_of<double>(piece.entry, i) : gradient_of<float>(piece.entry, i);
            total += x * x;
        }
        total = add_up(total);
        if (threadIdx.x == 0) sums[at] = total;
    }
    __shared__ bool is_last;
    // The first fence makes this block's sums visible before it is counted as done; the second keeps the last block
    // from reading sums of other blocks before it has seen that all are done.
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicAdd((unsigned *)clipping.n_done, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    bool finite = true;
    for (int64 at = 0; at < clipping.n; ++at) {
        double total = 0;
        int64 begin = at ? entries[at - 1].end : 0;
        for (int64 i = begin + threadIdx.x; i < entries[at].end; i += THREADS) total += ((volatile double *)sums)[i];
        total = add_up(total);
        finite = finite && total - total == 0;
        if (threadIdx.x == 0) squares[at] = total;
    }
    if (threadIdx.x == 0) {
        *(unsigned *)clipping.n_done = 0;
        if (clipping.finite && !finite) *(bool *)clipping.finite = false;
    }
}

// Scales all gradients by one factor, if their common norm is finite and exceeds the maximum.
extern "C" __global__ void __launch_bounds__(THREADS, 4) scale(int64 clipping_at, int64, int64) {
    const Clipping &clipping = *(const Clipping *)clipping_at;
    const Entry *entries = (const Entry *)clipping.entries;
    const double *squares = (const double *)clipping.squares;
    double square = 0;
    for (int64 at = 0; at < clipping.n; ++at) square += squares[at];
    double norm = sqrt(square);
    if (!(norm > clipping.max_norm) || norm - norm != 0) return;
    double factor = clipping.max_norm / norm;
    for (int64 at = blockIdx.x; at < entries[clipping.n - 1].end; at += gridDim.x) {
        const Piece piece = find_piece(entries, clipping.n, at);
        for (int64 i = piece.begin; i < piece.end; i += THREADS) {
            if (piece.entry.is_wide) gradient_of<double>(piece.entry, i) *= factor;
            else gradient_of<float>(piece.entry, i) *= (float)factor;
        }
    }
}
