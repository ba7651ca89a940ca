// Runs the threads of kernels on a CPU, as declared in `cuda_on_host.h`.
//
// Each thread of a block is a fiber. One runs at a time, until it waits at a barrier or a shuffle, or is done. Then one
// of the ready threads is drawn, by a generator that is seeded for each launch. Each block draws how: either any of
// them, or the last one released, so that some threads run far ahead of the others. Blocks run in a random order.
// So a missing barrier shows as a result that depends on the seed.
//
// Barriers are stricter than a GPU's: all threads of a mask (`__syncwarp` and shuffles), of a team of several warps
// (`team_barrier`), of a block (`__syncthreads`) or of a grid (`grid_wait`) must arrive, including those that are done.
// If they cannot, the launch ends with a message instead of waiting forever. A thread must not wait for another in its
// own loop either.

#include "cuda_on_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

namespace on_host {

Index thread_index, block_index, block_size, grid_size;
unsigned lane;
unsigned char *block_memory;

namespace {

struct Block;

const size_t STACK_BYTES = 128 << 10;      // per thread; `device.py` refuses kernels that need half of it
const size_t STRIDE = STACK_BYTES + 4160;  // between stacks, so that their ends map to different cache sets
const size_t GUARD_BYTES = 64;             // behind shared memory; must stay unwritten
const unsigned char GUARD = 0xa5;

enum State { READY, AT_WARP, AT_TEAM, AT_BLOCK, AT_GRID, DONE };
enum Meeting { BARRIER, SHUFFLE, VOTE };

// A thread, stored at the start of its stack's memory.
struct Thread {
    jmp_buf context;
    bool started;
    State state;
    unsigned number, source;  // number in its block; the lane that a shuffle reads
    Bits brought, received;   // values of a shuffle or a vote
    Index index;
    Block *block;
};

// Threads of a warp that wait for the others in a mask.
struct Gathering {
    unsigned mask, arrived;
    Meeting meeting;
};

struct Block {
    Index index;
    Thread **threads;       // in order
    Thread **ready;         // ready threads
    Gathering *gatherings;  // one per thread; the first thread of a mask holds the mask's
    unsigned *n_at_team;    // likewise: number of waiting threads of a team
    unsigned n_ready, n_at_barrier, n_at_grid, n_done;
    bool eager;             // the last released thread continues first
    unsigned char *memory;  // shared memory
    unsigned char *statics;
};

// State shared by all launches.
struct Machine {
    Thread **stacks;  // kept for later launches
    size_t n_stacks;
    Block *blocks;    // running blocks: one, or all if they wait for the grid
    unsigned n_blocks;
    Thread *thread;   // the running thread
    jmp_buf scheduler, error;
    Kernel kernel;
    const long long *args;
    unsigned n_threads, n_bytes;  // per block
    unsigned char *statics;       // static shared memory of the running block
    size_t n_statics;
    Bits random;
    char *message;  // receives the error message
    size_t message_size;
} machine;

// Draw a number below n (xorshift64*: Vigna 2016).
unsigned draw(unsigned n) {
    Bits &x = machine.random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return (unsigned)((x * 2685821657736338717ull >> 32) * n >> 32);
}

template <class T> void shuffle(T *items, unsigned n) {
    for (unsigned i = n; i > 1; --i) {
        unsigned j = draw(i);
        T item = items[j];
        items[j] = items[i - 1], items[i - 1] = item;
    }
}

[[noreturn]] void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(machine.message, machine.message_size, format, values);
    va_end(values);
    _longjmp(machine.error, 1);
}

void begin();

// Switch from the caller's stack to a thread's.
[[noreturn]] void run(Thread *thread) {
    machine.thread = thread;
    thread_index = thread->index;
    lane = thread->number % 32;
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

Thread *take_ready(Block &block) {
    unsigned at = block.eager ? block.n_ready - 1 : draw(block.n_ready);
    Thread *taken = block.ready[at];
    block.ready[at] = block.ready[--block.n_ready];
    return taken;
}

// Run other threads of the block until this one is ready and drawn.
void yield() {
    Thread *thread = machine.thread;
    Block &block = *thread->block;
    Thread *next = block.n_ready ? take_ready(block) : nullptr;
    if (next == thread || _setjmp(thread->context)) return;
    if (next) run(next);
    _longjmp(machine.scheduler, 1);
}

// Run the kernel, once for every block that the thread is part of.
void begin() {
    for (;;) {
        machine.kernel(machine.args[0], machine.args[1], machine.args[2]);
        machine.thread->state = DONE;
        ++machine.thread->block->n_done;
        yield();
    }
}

// Make the threads of a mask ready, numbered from `first` on.
void release(Block &block, unsigned first, unsigned n, unsigned mask) {
    unsigned before = block.n_ready;
    for (unsigned i = 0; i < n; ++i) {
        if (!(mask >> i % 32 & 1)) continue;
        block.threads[first + i]->state = READY;
        block.ready[block.n_ready++] = block.threads[first + i];
    }
    shuffle(block.ready + before, block.n_ready - before);
}

// Exchange the values that the threads of a mask brought.
void hand_over(Block &block, unsigned first, const Gathering &here) {
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
        warp[i]->received = here.meeting == VOTE ? votes : warp[source]->brought;
    }
}

// Wait for the threads of a mask in this warp.
void meet(unsigned mask, Meeting meeting) {
    Thread *thread = machine.thread;
    Block &block = *thread->block;
    unsigned first = thread->number - lane, size = machine.n_threads - first;
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
        if (meeting != BARRIER) hand_over(block, first, here);
        release(block, first, size < 32 ? size : 32, mask);
    }
    yield();
}

// Allocate stacks for n threads.
void grow(size_t n) {
    if (n <= machine.n_stacks) return;
    size_t size = (n - machine.n_stacks) * STRIDE;
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("there is no memory for the stacks of %zu threads", n);
    machine.stacks = (Thread **)realloc(machine.stacks, n * sizeof(Thread *));
    unsigned char *next = (unsigned char *)memory;
    for (; machine.n_stacks < n; next += STRIDE) machine.stacks[machine.n_stacks++] = (Thread *)next;
    for (unsigned i = 0; i < machine.n_blocks; ++i)
        machine.blocks[i].threads = machine.stacks + (size_t)i * machine.n_threads;
}

// Start a block.
void open(unsigned number) {
    unsigned n = machine.n_threads, place = machine.n_blocks;
    grow((size_t)(place + 1) * n);
    Block &block = machine.blocks[place];
    block = Block{};
    ++machine.n_blocks;
    block.index = {number, 0, 0};
    block.threads = machine.stacks + (size_t)place * n;
    block.ready = (Thread **)malloc(n * sizeof(Thread *));
    block.gatherings = (Gathering *)calloc(n, sizeof(Gathering));
    block.n_at_team = (unsigned *)calloc(n, sizeof(unsigned));
    block.memory = (unsigned char *)aligned_alloc(64, (machine.n_bytes + GUARD_BYTES + 63) / 64 * 64);
    memset(block.memory, 0xff, machine.n_bytes);
    memset(block.memory + machine.n_bytes, GUARD, GUARD_BYTES);
    block.statics = (unsigned char *)malloc(machine.n_statics + 1);
    memset(block.statics, 0xff, machine.n_statics);
    block.eager = draw(2);
    for (unsigned i = 0; i < n; ++i) {
        Thread *thread = block.threads[i];
        thread->block = &block;
        thread->number = i;
        thread->index = {i % block_size.x, i / block_size.x, 0};
    }
    release(block, 0, n, 0xffffffffu);
}

void close(Block &block) {
    free(block.ready), free(block.gatherings), free(block.n_at_team), free(block.memory), free(block.statics);
}

const char *activity(const Thread *thread) {
    const char *names[] = {"runs", "waits at __syncwarp or a shuffle", "waits at team_barrier",
                           "waits at __syncthreads", "waits at grid_wait", "is done"};
    return names[thread->state];
}

// Report why no thread of a block can continue.
[[noreturn]] void tell_deadlock(const Block &block) {
    const Thread *one = nullptr, *other = nullptr;
    for (unsigned i = 0; i < machine.n_threads; ++i)
        if (block.threads[i]->state != DONE) one = block.threads[i];
    for (unsigned i = 0; i < machine.n_threads; ++i)
        if (block.threads[i]->state != one->state && (!other || i / 32 == one->number / 32)) other = block.threads[i];
    if (!other) fail("block %u never ends: thread %u %s, as all do", block.index.x, one->number, activity(one));
    fail("block %u never ends: thread %u %s, and thread %u %s", block.index.x, one->number, activity(one),
         other->number, activity(other));
}

// Run a block until all of its threads are done, or all wait for the grid.
void advance(Block &block) {
    block_index = block.index;
    block_memory = block.memory;
    if (machine.n_statics) memcpy(machine.statics, block.statics, machine.n_statics);
    if (!_setjmp(machine.scheduler)) run(take_ready(block));
    if (machine.n_statics) memcpy(block.statics, machine.statics, machine.n_statics);
    for (size_t i = 0; i < GUARD_BYTES; ++i)
        if (block.memory[machine.n_bytes + i] != GUARD)
            fail("block %u writes behind its %u bytes of shared memory", block.index.x, machine.n_bytes);
    if (block.n_done < machine.n_threads && block.n_at_grid < machine.n_threads) tell_deadlock(block);
}

// Run all blocks, one after the other, or from one grid barrier to the next.
void run_blocks(unsigned *order) {
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
        if (n_waiting < n)
            fail("it never ends: %u of %u blocks wait at grid_wait, and the others are done", n_waiting, n);
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

}  // namespace

void wait_for_warp(unsigned mask) { meet(mask, BARRIER); }

Bits exchange(unsigned mask, Bits value, unsigned source) {
    Thread *thread = machine.thread;
    thread->brought = value;
    thread->source = source;
    meet(mask, SHUFFLE);
    return thread->received;
}

unsigned vote(unsigned mask, bool vote) {
    Thread *thread = machine.thread;
    thread->brought = vote;
    meet(mask, VOTE);
    return (unsigned)thread->received;
}

void wait_for_team(unsigned number, unsigned size) {
    Thread *thread = machine.thread;
    Block &block = *thread->block;
    unsigned first = number * size;
    if (size == 0 || size % 32 || thread->number / size != number || first + size > machine.n_threads)
        fail("thread %u of block %u waits for team %u of %u threads", thread->number, block.index.x, number, size);
    thread->state = AT_TEAM;
    if (++block.n_at_team[first] == size) {
        block.n_at_team[first] = 0;
        release(block, first, size, 0xffffffffu);
    }
    yield();
}

void wait_for_block() {
    Block &block = *machine.thread->block;
    machine.thread->state = AT_BLOCK;
    if (++block.n_at_barrier == machine.n_threads) {
        block.n_at_barrier = 0;
        release(block, 0, machine.n_threads, 0xffffffffu);
    }
    yield();
}

void wait_for_grid(Bits *arrived) {
    Thread *thread = machine.thread;
    if (thread->number == 0 && ++*arrived > grid_size.x)
        fail("block %u is number %llu of %u blocks to arrive at grid_wait: the count was not 0 before",
             thread->block->index.x, *arrived, grid_size.x);
    thread->state = AT_GRID;
    ++thread->block->n_at_grid;
    yield();
}

Bits nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (Bits)now.tv_sec * 1000000000 + now.tv_nsec;
}

int launch(Kernel kernel, unsigned grid, unsigned x, unsigned y, unsigned n_bytes, Bits seed, const long long *args,
           unsigned char *statics, unsigned long n_statics, char *message, unsigned long message_size) {
    grid_size = {grid, 1, 1}, block_size = {x, y, 1};
    machine.kernel = kernel, machine.args = args;
    machine.n_threads = x * y, machine.n_bytes = n_bytes;
    machine.statics = statics, machine.n_statics = n_statics;
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

}  // namespace on_host
