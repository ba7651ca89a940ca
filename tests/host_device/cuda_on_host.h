// CUDA C++ on a CPU: prepended to kernels, so that `g++ -std=c++17` builds the source that NVRTC builds for a GPU. It
// includes no system header and little code, so a module of kernels builds in a fraction of a second. The threads run
// in `threads.cpp`, which is built once.
//
// Shared memory starts as 0xff bytes, which are NaN.

#define AUTOBATCH_ON_HOST

#define __global__
#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n_bytes) __attribute__((aligned(n_bytes)))
#define __shared__ static __attribute__((section("block_statics")))
#define BLOCK_MEMORY(name) unsigned char *name = on_host::block_memory

// Mathematical functions, with an overload per float type, as in CUDA C++.

#define FUNCTION(name)                          \
    extern "C" double name(double) noexcept;    \
    inline float name(float x) noexcept { return __builtin_##name##f(x); }
FUNCTION(exp)
FUNCTION(log)
FUNCTION(log1p)
FUNCTION(sqrt)
FUNCTION(sin)
FUNCTION(cos)
FUNCTION(tanh)
FUNCTION(erf)
FUNCTION(erfc)
FUNCTION(fabs)
#undef FUNCTION
extern "C" double pow(double, double) noexcept;
extern "C" double fma(double, double, double) noexcept;
inline float pow(float x, float y) noexcept { return __builtin_powf(x, y); }
inline float fma(float x, float y, float z) noexcept { return __builtin_fmaf(x, y, z); }

namespace on_host {

struct Index { unsigned x, y, z; };
typedef void (*Kernel)(long long, long long, long long);
typedef unsigned long long Bits;

// Of the running thread, and its block.
extern Index thread_index, block_index, block_size, grid_size;
extern unsigned lane;
extern unsigned char *block_memory;

// Barriers; see `threads.cpp`.
void wait_for_warp(unsigned mask);
void wait_for_team(unsigned number, unsigned size);
void wait_for_block();
void wait_for_grid(Bits *arrived);
Bits exchange(unsigned mask, Bits value, unsigned source);  // sends a value, and returns that of the lane `source`
unsigned vote(unsigned mask, bool vote);                    // returns the lanes that vote for it
Bits nanoseconds();
int launch(Kernel kernel, unsigned grid, unsigned x, unsigned y, unsigned n_bytes, Bits seed, const long long *args,
           unsigned char *statics, unsigned long n_statics, char *message, unsigned long message_size);

template <class T> inline T exchange_numbers(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= sizeof(Bits), "shuffles move numbers of up to 64 bits");
    Bits bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = exchange(mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T> inline T add_at(T *address, T value) {
    T before = *address;
    *address = before + value;
    return before;
}

}  // namespace on_host

#define threadIdx on_host::thread_index
#define blockIdx on_host::block_index
#define blockDim on_host::block_size
#define gridDim on_host::grid_size

inline void __syncthreads() { on_host::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { on_host::wait_for_warp(mask); }
inline void team_barrier(int number, int size) { on_host::wait_for_team(number, size); }
inline void grid_arrive(unsigned long long *) {}
inline void grid_wait(unsigned long long *arrived) { on_host::wait_for_grid(arrived); }
inline void __threadfence() {}
inline unsigned long long nanoseconds() { return on_host::nanoseconds(); }

// Groups of `width` lanes exchange values. A lane that would read outside its group reads its own value.
template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return on_host::exchange_numbers(mask, value, (on_host::lane & -width) | (source & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32) {
    unsigned lane = on_host::lane, source = lane ^ step;
    return on_host::exchange_numbers(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
    unsigned lane = on_host::lane, source = lane + step;
    return on_host::exchange_numbers(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int vote) { return on_host::vote(mask, vote); }
inline int __any_sync(unsigned mask, int vote) { return on_host::vote(mask, vote) != 0; }

template <class T> inline T __ldg(const T *address) { return *address; }

inline int atomicAdd(int *address, int value) { return on_host::add_at(address, value); }
inline unsigned atomicAdd(unsigned *address, unsigned value) { return on_host::add_at(address, value); }
inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value) {
    return on_host::add_at(address, value);
}
inline unsigned long long atomicMax(unsigned long long *address, unsigned long long value) {
    unsigned long long before = *address;
    *address = before < value ? value : before;
    return before;
}

// The static shared memory of a module is a section with the values of the running block.
extern "C" unsigned char __start_block_statics[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_block_statics[] __attribute__((weak, visibility("hidden")));

// Launch a kernel of this module with a grid of blocks of x * y threads and `n_bytes` of shared memory; wait for it.
// Returns 0, or 1 if it failed: then `message` says why.
extern "C" int autobatch_launch(on_host::Kernel kernel, unsigned grid, unsigned x, unsigned y, unsigned n_bytes,
                                on_host::Bits seed, long long a, long long b, long long c, char *message,
                                unsigned long message_size) {
    const long long args[3] = {a, b, c};
    return on_host::launch(kernel, grid, x, y, n_bytes, seed, args, __start_block_statics,
                           (unsigned long)(__stop_block_statics - __start_block_statics), message, message_size);
}
