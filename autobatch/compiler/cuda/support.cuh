// Types and functions of generated kernels. The text before this one defines `real`, the model's float type, and
// `index_type`, the type of destinations. On a host build, `cuda_on_host.h` comes first and defines AUTOBATCH_ON_HOST.

typedef long long int64;
typedef int int32;

#ifndef AUTOBATCH_ON_HOST
extern __shared__ __align__(16) unsigned char block_memory[];
#define BLOCK_MEMORY(name) unsigned char *name = block_memory
#endif

#define INF ((real)(1.0 / 0.0))
#define NAN_ ((real)(0.0 / 0.0))

const int THREADS = 256;  // of every block

#ifndef AUTOBATCH_ON_HOST
// Wait until all threads of a team of several warps are here; `number` is that of the team in its block.
__device__ inline void team_barrier(int number, int size) {
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(size) : "memory");
}

// Say that this block is here; `arrived` is 0 before, and serves once.
__device__ inline void grid_arrive(unsigned long long *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1ull);
    }
}

// Wait until all blocks have said so.
__device__ inline void grid_wait(unsigned long long *arrived) {
    if (threadIdx.x == 0) {
        while (*(volatile unsigned long long *)arrived < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
}
#endif

#ifndef AUTOBATCH_ON_HOST
// Nanoseconds of the clock that all processors of the GPU share; it may move in steps of a microsecond.
__device__ inline unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}
#endif

// A block, and its shared memory.
struct Worker {
    unsigned char *memory;
    int64 block, n_blocks;
};

// Threads that work on one row: a power of two of them inside a warp, or several warps of a block.
struct Team {
    int lane, size, number;  // the number of the team in its block
    unsigned mask;           // of its threads in their warp, if it is not larger than a warp
    real *spare;             // an element per warp, for `reduce` alone, in teams of several warps
    int64 first, step;       // its first row, and how far it is to the next

    __device__ Team(const Worker &worker, int size) : lane(threadIdx.x % size), size(size), number(threadIdx.x / size) {
        mask = size < 32 ? ((1u << size) - 1u) << (number * size % 32) : 0xffffffffu;
        spare = (real *)worker.memory + (threadIdx.x / 32 & ~(size / 32 - 1));
        first = worker.block * (THREADS / size) + number;
        step = worker.n_blocks * (THREADS / size);
    }

    // Wait until all threads of the team are here; what each of them wrote can then be read by all.
    __device__ void sync() const {
        if (size <= 32) __syncwarp(mask);
        else team_barrier(number, size);
    }

    // The memory of the team's row: shared memory, behind the spare elements; or global memory if `rows` is some.
    __device__ real *row(const Worker &worker, real *rows, int64 width) const {
        return rows ? rows + first * width : (real *)worker.memory + 32 + number * width;
    }

    // Reduce a number per thread. Each thread gets the same bits, also where the order of two numbers decides about them.
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

// Functions of numbers.

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

// The share of the normal distribution below x: erfc(m) / 2 with m = -x / sqrt(2). What m loses by rounding, `rest`,
// counts in the lower tail, where the derivative of erfc(m) is nearly -2 m erfc(m).
__device__ inline real ndtr(real x) {
    const double root_half = 0.70710678118654752440;
    const real factor = root_half, small = sizeof(real) == 4 ? root_half - factor : -4.833646656726457e-17;
    real m = -x * factor, rest = -fma(x, small, fma(x, factor, m));
    real half = (real)0.5 * erfc(m);
    return m > 0 && half > 0 ? half - half * ((real)2 * m * rest) : half;
}

// The limit of both at -infinity is 0.
__device__ inline real gelu(real x) {
    real bounded = x < -40 ? (real)-40 : x;
    return bounded * ndtr(bounded);
}

__device__ inline real gelu_tanh(real x) {
    real bounded = x < -40 ? (real)-40 : x;
    return bounded * sigmoid((real)1.5957691216057308 * (bounded + (real)0.044715 * bounded * bounded * bounded));
}

// Moving values between nodes.

// Write to `total` the sum of the ranges of `size` elements that begin at dest[start:stop] + shift.
__device__ inline void collect(const Team &team, const real *buffer, real *total, int64 size, const index_type *dest,
                               int64 start, int64 stop, int64 shift) {
    for (int64 i = team.lane; i < size; i += team.size) {
        real sum = 0;
        for (int64 j = start; j < stop; ++j) sum = j == start ? buffer[dest[j] + shift + i] : sum + buffer[dest[j] + shift + i];
        total[i] = sum;
    }
}

// Write a value to `to`.
__device__ inline void send(const Team &team, const real *value, int64 size, real *to) {
    for (int64 i = team.lane; i < size; i += team.size) to[i] = value[i];
}
