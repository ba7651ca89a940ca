// Types and functions of generated kernels. The text before this file defines `real`, the model's float type, and
// `index_type`, the type of destinations. In a host build, `cuda_on_host.h` comes first and defines AUTOBATCH_ON_HOST.

typedef long long int64;
typedef int int32;

#ifndef AUTOBATCH_ON_HOST
extern __shared__ __align__(16) unsigned char block_memory[];
#define BLOCK_MEMORY(name) unsigned char *name = block_memory
#endif

#define INF ((real)(1.0 / 0.0))
#define NAN_ ((real)(0.0 / 0.0))

const int THREADS = 256;  // per block

#ifndef AUTOBATCH_ON_HOST
// Waits for all threads of a team of several warps; `number` is the team's number in its block. Barrier 0 is left to
// `__syncthreads`.
__device__ inline void team_barrier(int number, int size) {
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(size) : "memory");
}

// Counts this block as arrived at a grid barrier. `arrived` must be 0 at first, and serves one barrier only. The fence
// makes the block's writes visible to other blocks before it is counted.
__device__ inline void grid_arrive(unsigned long long *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1ull);
    }
}

// Waits until all blocks have arrived. They must all be resident at the same time, or this never ends. The fence keeps
// later reads from moving ahead of the wait.
__device__ inline void grid_wait(unsigned long long *arrived) {
    if (threadIdx.x == 0) {
        while (*(volatile unsigned long long *)arrived < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
}
#endif

#ifndef AUTOBATCH_ON_HOST
// Returns the nanoseconds of the clock that all multiprocessors share; its resolution may be a microsecond.
__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
#endif

// A block and its shared memory.
struct Worker {
    unsigned char *memory;
    int64 block, n_blocks;
};

// Threads that work on one row: a power of two of the threads of a warp, or several warps of a block.
struct Team {
    int lane, size, number;  // `number`: of the team in its block
    unsigned mask;           // its threads in their warp
    real *spare;             // one element per warp, for `reduce` in teams of several warps
    int64 first, step;       // its first row, and the distance to its next one

    __device__ Team(const Worker &worker, int size) : lane(threadIdx.x % size), size(size), number(threadIdx.x / size) {
        mask = size < 32 ? ((1u << size) - 1u) << (number * size % 32) : 0xffffffffu;
        spare = (real *)worker.memory + (threadIdx.x / 32 & ~(size / 32 - 1));
        first = worker.block * (THREADS / size) + number;
        step = worker.n_blocks * (THREADS / size);
    }

    // Waits for all threads of the team; then each can read what the others wrote.
    __device__ void sync() const {
        if (size <= 32) __syncwarp(mask);
        else team_barrier(number, size);
    }

    // Returns the memory of the team's row: shared memory, after the spare elements; or global memory, if `rows` is not
    // null.
    __device__ real *row(const Worker &worker, real *rows, int64 width) const {
        return rows ? rows + first * width : (real *)worker.memory + 32 + number * width;
    }

    // Reduces one number per thread. All threads get the same bits, even if `combine` depends on the order of its
    // arguments: both threads of a pair pass their numbers in the same order.
    template <class Combine> __device__ real reduce(real x, Combine combine) const {
        int width = size < 32 ? size : 32;
        for (int step = width / 2; step > 0; step /= 2) {
            real other = __shfl_xor_sync(mask, x, step, width);
            x = lane & step ? combine(other, x) : combine(x, other);
        }
        if (size <= 32) return x;
        if (lane % 32 == 0) spare[lane / 32] = x;
        sync();
        x = spare[0];
        for (int warp = 1; warp < size / 32; ++warp) x = combine(x, spare[warp]);
        sync();
        return x;
    }
};

// Scalar functions.

// Returns the larger number, or NaN if one is NaN.
__device__ inline real larger(real x, real y) { return x > y || x != x ? x : y; }
__device__ inline real plus(real total, real term) { return total + term; }
__device__ inline real power(real x, real y) { return pow(x, y); }

struct Plus { __device__ real operator()(real x, real y) const { return x + y; } };
struct Larger { __device__ real operator()(real x, real y) const { return larger(x, y); } };

__device__ inline real sigmoid(real x) {
    real z = exp(-fabs(x));
    return (x >= 0 ? (real)1 : z) / ((real)1 + z);
}

__device__ inline real softplus(real x) { return (x > 0 ? x : (real)0) + log1p(exp(-fabs(x))); }

// Returns the cumulative normal distribution at x: erfc(m) / 2 with m = -x / sqrt(2). The rounding error of m, `rest`,
// matters in the lower tail, where the derivative of erfc(m) is nearly -2 m erfc(m).
__device__ inline real ndtr(real x) {
    const double root_half = 0.70710678118654752440;
    const real factor = root_half, small = sizeof(real) == 4 ? root_half - factor : -4.833646656726457e-17;
    real m = -x * factor, rest = -fma(x, small, fma(x, factor, m));
    real half = (real)0.5 * erfc(m);
    return m > 0 && half > 0 ? half - half * ((real)2 * m * rest) : half;
}

// Both functions have the limit 0 at -infinity. They bound x, because -infinity times 0 is NaN.
__device__ inline real gelu(real x) {
    real bounded = x < -40 ? (real)-40 : x;
    return bounded * ndtr(bounded);
}

__device__ inline real gelu_tanh(real x) {
    real bounded = x < -40 ? (real)-40 : x;
    return bounded * sigmoid((real)1.5957691216057308 * (bounded + (real)0.044715 * bounded * bounded * bounded));
}

// Transfers of values between nodes.

// Writes to `total` the sum of the ranges of `size` elements that begin at dest[start:stop] + shift.
__device__ inline void collect(const Team &team, const real *buffer, real *total, int64 size, const index_type *dest,
                               int64 start, int64 stop, int64 shift) {
    for (int64 i = team.lane; i < size; i += team.size) {
        real sum = 0;
        for (int64 j = start; j < stop; ++j) sum = j == start ? buffer[dest[j] + shift + i] : sum + buffer[dest[j] + shift + i];
        total[i] = sum;
    }
}

// Writes a value to `to`.
__device__ inline void send(const Team &team, const real *value, int64 size, real *to) {
    for (int64 i = team.lane; i < size; i += team.size) to[i] = value[i];
}
