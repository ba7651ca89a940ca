// CUDA C++ on a processor: what comes before kernels so that `g++ -std=c++17` builds the source that NVRTC builds for a
// GPU. It includes few system headers, so a module of kernels builds in a fraction of a second.
//
// Each thread of a block is a fiber. One runs at a time, until it waits at a barrier or a shuffle, or is done; then one
// of those that can go on is drawn, by a generator that is seeded for each launch. A block draws how: either any of
// them, or the last that was released, so that some threads run far ahead of the others. Blocks run in a random order.
// Shared memory begins as 0xff bytes, which are NaN. So a missing barrier shows as a result that is NaN or that depends
// on the seed.
//
// Barriers are stricter than a GPU's: all threads of a block (`__syncthreads`), of a mask (`__syncwarp` and shuffles)
// or of a grid (`grid_barrier`) have to come, also those that are done. Where that cannot be, the launch ends with a
// message instead of waiting for ever. Neither may a thread wait for another in a loop of its own.

#define AUTOBATCH_ON_HOST
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n_bytes) __attribute__((aligned(n_bytes)))
#define __shared__ static __attribute__((section("block_statics")))
#define BLOCK_MEMORY(name) unsigned char *name = on_host::machine.thread->block->memory

// Functions of numbers, with an overload per float type, as CUDA C++ has them.

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
struct Block;

const size_t STACK_BYTES = 128 << 10;      // of a thread; `host.py` refuses functions that need half of it
const size_t STRIDE = STACK_BYTES + 4160;  // between stacks: their ends lie in different sets of the caches
const size_t GUARD_BYTES = 64;             // behind shared memory: nobody may write there
const unsigned char GUARD = 0xa5;

enum State { READY, AT_WARP, AT_BLOCK, AT_GRID, DONE };
enum Meeting { SYNC, SHUFFLE, BALLOT };

// A thread; it lies at the start of the memory of its stack.
struct Thread {
    jmp_buf context;
    bool started;
    State state;
    unsigned number, source;               // in its block; the lane that a shuffle reads
    unsigned long long brought, received;  // at a shuffle or a ballot
    Index index;
    Block *block;
};

// Threads of a warp that wait for the others of a mask.
struct Gathering {
    unsigned mask, arrived;
    Meeting meeting;
};

struct Block {
    Index index;
    Thread **threads;       // in order
    Thread **ready;         // those that can go on
    Gathering *gatherings;  // one per thread: the first of a mask has that of the mask
    unsigned n_ready, n_at_barrier, n_at_grid, n_done;
    bool eager;             // the last thread that was released goes on first
    unsigned char *memory;  // shared memory
    unsigned char *statics;
};

// What all launches share.
struct Machine {
    Thread **stacks;  // kept for later launches
    size_t n_stacks;
    Block *blocks;    // that run now: one, or all if they wait for the grid
    unsigned n_blocks;
    Thread *thread;   // that runs now
    jmp_buf scheduler, error;
    void (*kernel)(long long, long long, long long);
    long long args[3];
    unsigned n_threads, n_bytes;  // per block
    unsigned long long random;
    char *message;    // where errors are told
    size_t message_size;
};

inline Machine machine;  // the linker makes it one for all modules of a process: `inline` variables are unique
inline Index thread_index, block_index, block_size, grid_size;

// A number below n (xorshift64*: Vigna 2016).
static unsigned draw(unsigned n) {
    unsigned long long &x = machine.random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return (unsigned)((x * 2685821657736338717ull >> 32) * n >> 32);
}

template <class T> static void shuffle(T *items, unsigned n) {
    for (unsigned i = n; i > 1; --i) {
        unsigned j = draw(i);
        T item = items[j];
        items[j] = items[i - 1], items[i - 1] = item;
    }
}

[[noreturn]] static void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(machine.message, machine.message_size, format, values);
    va_end(values);
    _longjmp(machine.error, 1);
}

static void begin();

// Leave the stack of the caller for that of a thread.
[[noreturn]] static void run(Thread *thread) {
    machine.thread = thread;
    thread_index = thread->index;
    if (thread->started) _longjmp(thread->context, 1);
    thread->started = true;
    ucontext_t fresh;
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = thread + 1;
    fresh.uc_stack.ss_size = STACK_BYTES - sizeof(Thread);
    fresh.uc_link = nullptr;
    makecontext(&fresh, begin, 0);
    setcontext(&fresh);
    abort();
}

static Thread *take_ready(Block &block) {
    unsigned at = block.eager ? block.n_ready - 1 : draw(block.n_ready);
    Thread *taken = block.ready[at];
    block.ready[at] = block.ready[--block.n_ready];
    return taken;
}

// Let other threads of the block run, until this one is ready and drawn.
static void yield() {
    Thread *thread = machine.thread;
    Block &block = *thread->block;
    Thread *next = block.n_ready ? take_ready(block) : nullptr;
    if (next == thread || _setjmp(thread->context)) return;
    if (next) run(next);
    _longjmp(machine.scheduler, 1);
}

// What each thread runs: the kernel, once for every block that the thread is part of.
static void begin() {
    for (;;) {
        machine.kernel(machine.args[0], machine.args[1], machine.args[2]);
        machine.thread->state = DONE;
        ++machine.thread->block->n_done;
        yield();
    }
}

// Let the threads of a mask go on: those numbered from `first` on.
static void release(Block &block, unsigned first, unsigned n, unsigned mask) {
    unsigned before = block.n_ready;
    for (unsigned i = 0; i < n; ++i) {
        if (!(mask >> i % 32 & 1)) continue;
        block.threads[first + i]->state = READY;
        block.ready[block.n_ready++] = block.threads[first + i];
    }
    shuffle(block.ready + before, block.n_ready - before);
}

// Hand over what the threads of a mask brought.
static void hand_over(Block &block, unsigned first, const Gathering &here) {
    Thread **warp = block.threads + first;
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (here.mask >> i & 1 && warp[i]->brought) votes |= 1u << i;
    for (unsigned i = 0; i < 32; ++i) {
        if (!(here.mask >> i & 1)) continue;
        unsigned source = warp[i]->source;
        if (here.meeting == SHUFFLE && !(here.mask >> source & 1))
            fail("thread %u of block %u reads from lane %u, and the lanes %#x take part", first + i, block.index.x,
                 source, here.mask);
        warp[i]->received = here.meeting == BALLOT ? votes : warp[source]->brought;
    }
}

// Wait for the threads of a mask in this warp.
static void meet(unsigned mask, Meeting meeting) {
    Thread *thread = machine.thread;
    Block &block = *thread->block;
    unsigned lane = thread->number % 32, first = thread->number - lane, size = machine.n_threads - first;
    unsigned lanes = size < 32 ? (1u << size) - 1 : 0xffffffffu;
    if (!(mask >> lane & 1) || mask & ~lanes)
        fail("thread %u of block %u is lane %u of a warp with the lanes %#x, and waits for the lanes %#x",
             thread->number, block.index.x, lane, lanes, mask);
    Gathering &here = block.gatherings[first + (unsigned)__builtin_ctz(mask)];
    if (here.arrived == 0) here.mask = mask, here.meeting = meeting;
    if (here.mask != mask || here.meeting != meeting)
        fail("thread %u of block %u waits for the lanes %#x, while lanes %#x wait elsewhere for the lanes %#x",
             thread->number, block.index.x, mask, here.arrived, here.mask);
    here.arrived |= 1u << lane;
    thread->state = AT_WARP;
    if (here.arrived == mask) {
        here.arrived = 0;
        if (meeting != SYNC) hand_over(block, first, here);
        release(block, first, size < 32 ? size : 32, mask);
    }
    yield();
}

// Give a value, and get that of the lane `source`.
template <class T> static T exchange(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) <= 8, "shuffles move numbers of up to 64 bits");
    Thread *thread = machine.thread;
    memcpy(&thread->brought, &value, sizeof(T));
    thread->source = source;
    meet(mask, SHUFFLE);
    memcpy(&value, &thread->received, sizeof(T));
    return value;
}

static unsigned ballot(unsigned mask, bool vote) {
    machine.thread->brought = vote;
    meet(mask, BALLOT);
    return (unsigned)machine.thread->received;
}

static unsigned lane() { return machine.thread->number % 32; }

static void wait_for_block() {
    Block &block = *machine.thread->block;
    machine.thread->state = AT_BLOCK;
    if (++block.n_at_barrier == machine.n_threads) {
        block.n_at_barrier = 0;
        release(block, 0, machine.n_threads, 0xffffffffu);
    }
    yield();
}

static void wait_for_grid() {
    machine.thread->state = AT_GRID;
    ++machine.thread->block->n_at_grid;
    yield();
}

// Static shared memory of a module is a section, which holds that of the block that runs.
extern "C" unsigned char __start_block_statics[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_block_statics[] __attribute__((weak, visibility("hidden")));
static size_t n_static_bytes() { return (size_t)(__stop_block_statics - __start_block_statics); }

// Have stacks for n threads.
static void grow(size_t n) {
    if (n <= machine.n_stacks) return;
    size_t size = (n - machine.n_stacks) * STRIDE;
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("there is no memory for the stacks of %zu threads", n);
    machine.stacks = (Thread **)realloc(machine.stacks, n * sizeof(Thread *));
    unsigned char *next = (unsigned char *)memory;
    for (; machine.n_stacks < n; next += STRIDE) machine.stacks[machine.n_stacks++] = (Thread *)next;
}

// Begin a block.
static void open(unsigned number) {
    unsigned n = machine.n_threads, place = machine.n_blocks;
    grow((size_t)(place + 1) * n);
    Block &block = machine.blocks[place];
    block = Block{};
    ++machine.n_blocks;
    block.index = {number, 0, 0};
    block.threads = machine.stacks + (size_t)place * n;
    block.ready = (Thread **)malloc(n * sizeof(Thread *));
    block.gatherings = (Gathering *)calloc(n, sizeof(Gathering));
    block.memory = (unsigned char *)aligned_alloc(64, (machine.n_bytes + GUARD_BYTES + 63) / 64 * 64);
    memset(block.memory, 0xff, machine.n_bytes);
    memset(block.memory + machine.n_bytes, GUARD, GUARD_BYTES);
    block.statics = (unsigned char *)malloc(n_static_bytes() + 1);
    memset(block.statics, 0xff, n_static_bytes());
    block.eager = draw(2);
    for (unsigned i = 0; i < n; ++i) {
        Thread *thread = block.threads[i];
        thread->block = &block;
        thread->number = i;
        thread->index = {i % block_size.x, i / block_size.x, 0};
    }
    release(block, 0, n, 0xffffffffu);
}

static void close(Block &block) {
    free(block.ready), free(block.gatherings), free(block.memory), free(block.statics);
}

static const char *activity(const Thread *thread) {
    const char *names[] = {"runs", "waits at __syncwarp or a shuffle", "waits at __syncthreads",
                           "waits at grid_barrier", "is done"};
    return names[thread->state];
}

// Tell why no thread of a block can go on.
[[noreturn]] static void tell_deadlock(const Block &block) {
    const Thread *one = nullptr, *other = nullptr;
    for (unsigned i = 0; i < machine.n_threads; ++i)
        if (block.threads[i]->state != DONE) one = block.threads[i];
    for (unsigned i = 0; i < machine.n_threads; ++i)
        if (block.threads[i]->state != one->state && (!other || i / 32 == one->number / 32)) other = block.threads[i];
    if (!other) fail("block %u never ends: thread %u %s, and so do all others", block.index.x, one->number, activity(one));
    fail("block %u never ends: thread %u %s, and thread %u %s", block.index.x, one->number, activity(one),
         other->number, activity(other));
}

// Run a block until all of its threads are done, or all wait for the grid.
static void advance(Block &block) {
    block_index = block.index;
    if (n_static_bytes()) memcpy(__start_block_statics, block.statics, n_static_bytes());
    if (!_setjmp(machine.scheduler)) run(take_ready(block));
    if (n_static_bytes()) memcpy(block.statics, __start_block_statics, n_static_bytes());
    for (size_t i = 0; i < GUARD_BYTES; ++i)
        if (block.memory[machine.n_bytes + i] != GUARD)
            fail("block %u writes behind its %u bytes of shared memory", block.index.x, machine.n_bytes);
    if (block.n_done < machine.n_threads && block.n_at_grid < machine.n_threads) tell_deadlock(block);
}

// Run all blocks: one after the other, or from one barrier of the grid to the next.
static void run_blocks(unsigned *order) {
    unsigned n = grid_size.x;
    for (unsigned i = 0; i < n; ++i) order[i] = i;
    shuffle(order, n);
    for (unsigned i = 0; i < n; ++i) {
        open(order[i]);
        Block &block = machine.blocks[machine.n_blocks - 1];
        advance(block);
        if (block.n_at_grid) continue;
        close(block);
        --machine.n_blocks;
    }
    unsigned n_waiting = machine.n_blocks;
    while (n_waiting) {
        if (n_waiting < n) fail("it never ends: %u of %u blocks wait at grid_barrier, and the others are done", n_waiting, n);
        for (unsigned i = 0; i < n; ++i) order[i] = i;
        shuffle(order, n);
        for (unsigned i = 0; i < n; ++i) {
            Block &block = machine.blocks[order[i]];
            block.n_at_grid = 0;
            release(block, 0, machine.n_threads, 0xffffffffu);
            advance(block);
            if (!block.n_at_grid) --n_waiting;
        }
    }
}

}  // namespace on_host

#define threadIdx on_host::thread_index
#define blockIdx on_host::block_index
#define blockDim on_host::block_size
#define gridDim on_host::grid_size

inline void __syncthreads() { on_host::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { on_host::meet(mask, on_host::SYNC); }
inline void grid_barrier() { on_host::wait_for_grid(); }
inline void __threadfence() {}

// Lanes of `width` neighbours exchange among themselves: who would read from beyond them reads its own value.
template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return on_host::exchange(mask, value, (on_host::lane() & -width) | (source & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int step, int width = 32) {
    unsigned lane = on_host::lane(), source = lane ^ step;
    return on_host::exchange(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
    unsigned lane = on_host::lane(), source = lane + step;
    return on_host::exchange(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int vote) { return on_host::ballot(mask, vote); }
inline int __any_sync(unsigned mask, int vote) { return on_host::ballot(mask, vote) != 0; }

template <class T> inline T __ldg(const T *address) { return *address; }

template <class T> static T add_at(T *address, T value) {
    T before = *address;
    *address = before + value;
    return before;
}
inline int atomicAdd(int *address, int value) { return add_at(address, value); }
inline unsigned atomicAdd(unsigned *address, unsigned value) { return add_at(address, value); }
inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value) {
    return add_at(address, value);
}

// Launch a kernel with a grid of blocks of x * y threads, and wait until it is done.
// Returns 0, or 1 if it failed: then `message` says why.
extern "C" int autobatch_launch(void (*kernel)(long long, long long, long long), unsigned grid, unsigned x, unsigned y,
                                unsigned n_bytes, unsigned long long seed, long long a, long long b, long long c,
                                char *message, size_t message_size) {
    using namespace on_host;
    grid_size = {grid, 1, 1}, block_size = {x, y, 1};
    machine.kernel = kernel;
    machine.args[0] = a, machine.args[1] = b, machine.args[2] = c;
    machine.n_threads = x * y, machine.n_bytes = n_bytes;
    machine.random = seed * 11400714819323198485ull | 1;
    machine.message = message, machine.message_size = message_size;
    machine.n_blocks = 0;
    machine.blocks = (Block *)malloc(grid * sizeof(Block));
    unsigned *order = (unsigned *)malloc(grid * sizeof(unsigned));
    int failed = _setjmp(machine.error);
    if (failed)
        for (size_t i = 0; i < machine.n_stacks; ++i) machine.stacks[i]->started = false;
    else run_blocks(order);
    for (unsigned i = 0; i < machine.n_blocks; ++i) close(machine.blocks[i]);
    free(machine.blocks), free(order);
    return failed;
}
