// Types and functions of generated kernels. The text before this one defines `real`, the model's float type, and `place`,
// the type of destinations. On a host build, `cuda_on_host.h` comes first and defines AUTOBATCH_ON_HOST.

typedef long long int64;
typedef int int32;

#ifndef AUTOBATCH_ON_HOST
#define BLOCK_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

#define INF ((real)(1.0 / 0.0))
#define NAN_ ((real)(0.0 / 0.0))

// The threads that work on one row: a power of two of them inside a warp, or a whole block of full warps.
struct Team {
    int lane, size;
    unsigned mask;  // of its threads in their warp, if it is not larger than a warp
    real *spare;    // an element per warp, for teams of several warps

    __device__ explicit Team(unsigned char *memory) : lane(threadIdx.x), size(blockDim.x), mask(0xffffffffu) {
        if (size < 32) mask = ((1u << size) - 1u) << ((threadIdx.y * size) % 32);
        spare = (real *)memory;
    }

    // Wait until all threads of the team are here; what each of them wrote can then be read by all.
    __device__ void sync() const {
        if (size <= 32) __syncwarp(mask);
        else __syncthreads();
    }

    // Reduce a number per thread; each thread gets the same bits.
    template <class Combine> __device__ real reduce(real x, Combine combine) const {
        int width = size < 32 ? size : 32;
        for (int step = width / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(mask, x, step, width));
        if (size <= 32) return x;
        sync();
        if (lane % 32 == 0) spare[lane / 32] = x;
        sync();
        x = spare[0];
        for (int warp = 1; warp < size / 32; ++warp) x = combine(x, spare[warp]);
        sync();
        return x;
    }
};

// The memory of a team's row: shared memory, behind the spare elements of teams; or global memory if `rows` is some.
__device__ inline real *row_memory(unsigned char *memory, real *rows, int64 width) {
    if (rows) return rows + ((int64)blockIdx.x * blockDim.y + threadIdx.y) * width;
    return (real *)memory + 32 + threadIdx.y * width;
}

// Functions of numbers.

__device__ inline real larger(real x, real y) { return x > y || x != x ? x : y; }
__device__ inline real plus(real total, real term) { return total + term; }
__device__ inline real power(real x, real y) { return pow(x, y); }

struct Plus { __device__ real operator()(real x, real y) const { return x + y; } };
struct Larger { __device__ real operator()(real x, real y) const { return larger(x, y); } };

__device__ inline real sigmoid(real x) {
    real z = exp(-fabs(x));
    return (x >= 0 ? (real)1 : z) / ((real)1 + z) + (x != x ? x : (real)0);
}

__device__ inline real softplus(real x) {
    return x != x ? x : (x > 0 ? x : (real)0) + log1p(exp(-fabs(x)));
}

__device__ inline real ndtr(real x) { return (real)0.5 * erfc(x * (real)-0.70710678118654752440); }
__device__ inline real gelu(real x) { return x * ndtr(x); }

__device__ inline real gelu_tanh(real x) {
    return x * sigmoid((real)1.5957691216057308 * (x + (real)0.044715 * x * x * x));
}

// Moving values between nodes.

// Whether a value may be made at its first destination: it has one, and is added to none.
__device__ inline bool may_store(const bool *adds, int64 start, int64 stop) {
    for (int64 j = start; j < stop; ++j)
        if (adds[j]) return false;
    return start < stop;
}

// Write to `total` the sum of the ranges of `size` elements that begin at dest[start:stop] + shift.
__device__ inline void collect(const Team &team, const real *buffer, real *total, int64 size, const place *dest,
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
