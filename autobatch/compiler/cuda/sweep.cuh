// Makes the calls of a stage, one after the other, in one launch. Every block takes part in every call, and blocks wait
// for each other before a call that reads what other blocks wrote.

// A call: the function, the addresses of its stage's slots and of its descriptor, the number of a tile, the threads per
// row, and flags: WAIT if the next call waits for all blocks, and NOTE to record when the last block is done. Then come
// the number of blocks that have arrived at the barrier, and the recorded time.
const int WAIT = 1, NOTE = 2;

struct Step {
    int64 function, memory, descriptor, k, team, then;
    unsigned long long arrived, ended;
};

// Returns the operands of a product of the rows of a tile and a matrix. The descriptor holds the slots of the table, a,
// b and out; the field of a tile with the number of rows; for a and for out, the field of the first element, an offset
// and the row stride; the slot of the row stride of b; n; inner; flags, 1 if b is stored transposed and 2 to add to
// out; and the number of fields of a tile.
__device__ inline Matrices rows_by_matrix(const Step &step) {
    const int64 *slots = (const int64 *)step.memory, *descriptor = (const int64 *)step.descriptor, k = step.k;
    const int64 *table = (const int64 *)slots[descriptor[0]] + k * descriptor[15];
    Matrices m;
    m.n_rows = table[descriptor[4]];
    m.a = (const real *)slots[descriptor[1]] + table[descriptor[5]] + descriptor[6], m.a_step = descriptor[7];
    m.out = (real *)slots[descriptor[3]] + table[descriptor[8]] + descriptor[9], m.out_step = descriptor[10];
    const int64 pitch = slots[descriptor[11]];  // if negative, that of columns
    m.b = (const real *)slots[descriptor[2]], m.b_step = pitch < 0 ? -pitch : pitch;
    m.n = (int)descriptor[12], m.inner = (int)descriptor[13];
    m.a_flipped = false, m.flipped = (descriptor[14] & 1) != (pitch < 0), m.accumulate = descriptor[14] & 2;
    return m;
}

// A gradient, which has three slots from `slot` on: its address, and its row and column strides in elements.
struct Gradient {
    real *first;
    int64 row, column;

    __device__ Gradient(const int64 *slots, int64 slot)
        : first((real *)slots[slot]), row(slots[slot + 1]), column(slots[slot + 2]) {}
};

// Returns the operands of a' @ b over all rows of a type, which is added to a gradient. The descriptor holds the slots
// of the table, a and b; the field of a tile with the number of rows; for a and for b, the field of the first element,
// an offset and the row stride; the slot of the gradient, its rows and its columns; and the number of fields of a tile.
__device__ inline Matrices rows_by_rows(const Step &step) {
    const int64 *slots = (const int64 *)step.memory, *descriptor = (const int64 *)step.descriptor, k = step.k;
    const int64 *table = (const int64 *)slots[descriptor[0]] + k * descriptor[13];
    const Gradient gradient(slots, descriptor[10]);
    const bool is_flipped = gradient.column != 1;  // stored by columns: computes the transpose, b' @ a
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

// Adds the sum of all rows of a type to gradients. A block sums 8 columns at a time. The descriptor holds the slots of
// the table and of the rows; the fields of a tile with the number of rows and with their first element; an offset, the
// row stride, and the elements per row; the columns of a gradient, and the number of gradients; the number of fields of
// a tile; and the slot of each gradient.
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

// Adds values to places after batch k: sums[s] holds a place, its number of elements, and the first and the end of its
// parts. One warp computes a sum, in the order of the parts.
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

// Copies rows of k pairs of arrays. A pair has the addresses of the array to read and of the one to write, those of the
// numbers of the rows in each, the number of rows, and the elements per row. One warp copies a row.
__device__ void move_rows(const Worker &worker, int64 memory_, int64 k) {
    const Team team(worker, 32);
    for (const int64 *pair = (const int64 *)memory_, *end = pair + 6 * k; pair < end; pair += 6) {
        const real *from = (const real *)pair[0];
        real *to = (real *)pair[1];
        const int *found = (const int *)pair[2], *rows = (const int *)pair[3];
        const int64 n = pair[4], width = pair[5];
        for (int64 r = team.first; r < n; r += team.step) {
            for (int64 i = team.lane; i < width; i += team.size) to[rows[r] * width + i] = from[found[r] * width + i];
        }
    }
}

__device__ void call(const Worker &worker, const Step &step);

// The functions that multiply matrices. Their operands do not depend on earlier steps, but finding them takes a chain
// of loads, so `sweep` finds those of the next step while it waits for other blocks.
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
        if (s + 1 == end) return;  // the end of a launch serves as a barrier
        if (step.then & WAIT) grid_arrive(&step.arrived);
        matrices = find_matrices(steps[s + 1]);
        if (step.then & WAIT) grid_wait(&step.arrived);
        else __syncthreads();  // the next call reuses shared memory
    }
}
