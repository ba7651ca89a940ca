// The calls of a stage, one after the other, in one launch: every block takes part in every call, and blocks wait for
// each other where a call reads what others wrote.

// A call: the function, the slots of its stage, its descriptor, the number of a tile, the threads that work on
// a row, and what follows: whether the next call waits for all blocks (WAIT), and whether to note when the last block was
// done (NOTE); then the count of blocks that arrived there, and that time.
const int WAIT = 1, NOTE = 2;

struct Step {
    int64 function, memory, descriptor, k, team, then;
    unsigned long long arrived, ended;
};

// The rows of a tile times a matrix. The descriptor: the slots of a, b and out; the field of a tile that holds
// the rows, and for a and out the field of their first element, an offset and the elements from row to row; then the
// slot of the elements from row to row of b, n, inner, whether b is stored transposed (1) and to add (2), and the fields
// of a tile.
__device__ inline Matrices rows_by_matrix(const Step &step) {
    const int64 *slots = (const int64 *)step.memory, *descriptor = (const int64 *)step.descriptor, k = step.k;
    const int64 *table = (const int64 *)slots[descriptor[0]] + k * descriptor[15];
    Matrices m;
    m.n_rows = table[descriptor[4]];
    m.a = (const real *)slots[descriptor[1]] + table[descriptor[5]] + descriptor[6], m.a_step = descriptor[7];
    m.out = (real *)slots[descriptor[3]] + table[descriptor[8]] + descriptor[9], m.out_step = descriptor[10];
    const int64 pitch = slots[descriptor[11]];  // negative: of columns
    m.b = (const real *)slots[descriptor[2]], m.b_step = pitch < 0 ? -pitch : pitch;
    m.n = (int)descriptor[12], m.inner = (int)descriptor[13];
    m.a_flipped = false, m.flipped = (descriptor[14] & 1) != (pitch < 0), m.accumulate = descriptor[14] & 2;
    return m;
}

// Three slots of a gradient from `slot` on: its address, and the elements from row to row and from column to column.
struct Gradient {
    real *first;
    int64 row, column;

    __device__ Gradient(const int64 *slots, int64 slot)
        : first((real *)slots[slot]), row(slots[slot + 1]), column(slots[slot + 2]) {}
};

// Add a' @ b, over all rows of a type, to a gradient. The descriptor: the slots of the table, a and b; the field of a
// tile that holds the rows, and for a and b the field of their first element, an offset and the elements from row to
// row; then the slot of the gradient, its rows and its columns, and the fields of a tile.
__device__ inline Matrices rows_by_rows(const Step &step) {
    const int64 *slots = (const int64 *)step.memory, *descriptor = (const int64 *)step.descriptor, k = step.k;
    const int64 *table = (const int64 *)slots[descriptor[0]] + k * descriptor[13];
    const Gradient gradient(slots, descriptor[10]);
    const bool is_flipped = gradient.column != 1;  // the gradient is the transpose of rows
    const int64 *left = descriptor + (is_flipped ? 7 : 4), *right = descriptor + (is_flipped ? 4 : 7);
    Matrices m;
    m.a = (const real *)slots[descriptor[is_flipped ? 2 : 1]] + table[left[0]] + left[1], m.a_step = left[2];
    m.b = (const real *)slots[descriptor[is_flipped ? 1 : 2]] + table[right[0]] + right[1], m.b_step = right[2];
    m.out = gradient.first, m.out_step = is_flipped ? gradient.column : gradient.row;
    m.n_rows = descriptor[is_flipped ? 12 : 11], m.n = (int)descriptor[is_flipped ? 11 : 12];
    m.inner = (int)table[descriptor[3]];
    m.a_flipped = true, m.flipped = false, m.accumulate = true;
    return m;
}

// Add the sum of all rows of a type to gradients. The threads of a block share 8 columns. The descriptor: the slots of
// the table and of the rows; the field of a tile that holds the number of rows, and that of their first element, an
// offset, the elements from row to row and those of a row; the columns of a gradient, how many there are, the fields of
// a tile, and the slot of each gradient.
__device__ void add_row_sum(const Worker &worker, int64 memory_, int64 descriptor_, int64 k) {
    const int64 *slots = (const int64 *)memory_, *descriptor = (const int64 *)descriptor_;
    const int64 *table = (const int64 *)slots[descriptor[0]] + k * descriptor[9];
    const real *rows = (const real *)slots[descriptor[1]] + table[descriptor[3]] + descriptor[4];
    const int64 n_rows = table[descriptor[2]], width = descriptor[5], size = descriptor[6], n = descriptor[7];
    const int COLUMNS = 8, LINES = THREADS / COLUMNS, x = threadIdx.x % COLUMNS, y = threadIdx.x / COLUMNS;
    real *parts = (real *)worker.memory;
    for (int64 first = worker.block * COLUMNS; first < size; first += worker.n_blocks * COLUMNS) {
        const int64 i = first + x;
        real sum = 0;
        if (i < size) {
#pragma unroll 8
            for (int64 r = y; r < n_rows; r += LINES) sum += rows[r * width + i];
        }
        parts[y * (COLUMNS + 1) + x] = sum;
        __syncthreads();
        if (y == 0 && i < size) {
            for (int j = 1; j < LINES; ++j) sum += parts[j * (COLUMNS + 1) + x];
            for (int64 g = 0; g < descriptor[8]; ++g) {
                const Gradient gradient(slots, descriptor[10 + g]);
                gradient.first[i / n * gradient.row + i % n * gradient.column] += sum;
            }
        }
        __syncthreads();
    }
}

// Add values to places: sums[s] is a place, its number of elements, and the first and the end of its parts.
__device__ void add_up(const Worker &worker, int64 memory_, int64 k) {
    const int64 *slots = (const int64 *)memory_;
    real *buffer = (real *)slots[0];
    const int64 *sums = (const int64 *)slots[1], *parts = (const int64 *)slots[2], *ends = (const int64 *)slots[3];
    const Team team(worker, 32);
    for (int64 s = ends[k] + team.first; s < ends[k + 1]; s += team.step) {
        const int64 *sum = sums + 4 * s;
        for (int64 i = team.lane; i < sum[1]; i += team.size) {
            real total = buffer[sum[0] + i];
            for (int64 j = sum[2]; j < sum[3]; ++j) total += buffer[parts[j] + i];
            buffer[sum[0] + i] = total;
        }
    }
}

__device__ void call(const Worker &worker, const Step &step);

// What a step multiplies, if it does. It depends on no step before, and reading it takes a chain of loads: so each is
// read while other blocks are waited for.
const int MULTIPLY = 0, ADD_OUTER = 2;

__device__ inline Matrices find_matrices(const Step &step) {
    if (step.function == MULTIPLY) return rows_by_matrix(step);
    return step.function == ADD_OUTER ? rows_by_rows(step) : Matrices();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sweep(int64 steps_, int64 first, int64 end) {
    BLOCK_MEMORY(memory);
    const Worker worker = {memory, blockIdx.x, gridDim.x};
    Step *steps = (Step *)steps_;
    Matrices matrices = find_matrices(steps[first]);
    for (int64 s = first; s < end; ++s) {
        Step &step = steps[s];
        if (step.function == MULTIPLY || step.function == ADD_OUTER) multiply(worker, matrices);
        else call(worker, step);
        if (step.then & NOTE) {
            __syncthreads();
            if (threadIdx.x == 0) atomicMax(&step.ended, nanoseconds());
        }
        if (s + 1 == end) return;
        if (step.then & WAIT) grid_arrive(&step.arrived);
        matrices = find_matrices(steps[s + 1]);
        if (step.then & WAIT) grid_wait(&step.arrived);
        else __syncthreads();
    }
}
