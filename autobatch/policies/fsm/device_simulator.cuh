// Schedules many dags by state machines, with one warp per run. Lanes divide the types among themselves to choose one,
// and the nodes of a batch to run it. A warp only keeps counts, sums and sets, so a schedule does not depend on the
// order of threads: it has the same batches as that of `machine.py` on the CPU. In a host build, `cuda_on_host.h` comes
// first and defines AUTOBATCH_ON_HOST.

typedef long long int64;
typedef unsigned long long word;

#ifdef AUTOBATCH_ON_HOST
inline double product(double x, double y) { return x * y; }
inline double sum(double x, double y) { return x + y; }
#else
extern __shared__ __align__(16) unsigned char block_memory[];
#define BLOCK_MEMORY(name) unsigned char *name = block_memory
// Round each operation, and are never fused: the rule compares sums, which must equal those of the CPU.
__device__ inline double product(double x, double y) { return __dmul_rn(x, y); }
__device__ inline double sum(double x, double y) { return __dadd_rn(x, y); }
#endif

const unsigned ALL = 0xffffffffu;  // the mask of all lanes
const int THREADS = 512;           // the most threads of a block
const int SORT = 2, MAX = 1;       // encodings
const unsigned NONE = 0x7fff;      // the rank of a type that a machine does not choose

// A machine and its table of S states; see `table.py`.
struct Machine {
    const short *states;  // [S, width]
    const short *ranks;   // [S, T] the rank of each type in a state, 0 for the best, or NONE
    const int *slots;     // [n_slots] the numbers of states by hash, -1 in free slots
    int64 n_slots, encoding, critical, mask;
    double weights[4];    // of the rule: critical, ready, own, height
};

// The arguments of a launch: G stacked dags of T types, and R runs.
struct Job {
    const int *type_ids;              // [N] types of nodes
    const int *reader_ptr, *readers;  // [N + 1], [E]
    const int *n_inputs;              // [N] edges into a node
    const int *ahead, *height;        // [N, T], [N] see `native/schedule/chains.h`
    const int *segments;              // [G * T + 1] the number of nodes before those of each type of each dag
    const int *node_ptr;              // [G + 1]
    const int *blocked, *frontier;    // [N, T], [G * T] see `schedule/restricted.h`; null if frontiers are not needed
    int64 n_types;
    const int *dag_of, *machine_of;   // [R]
    const int64 *chances;             // [R] the probability of exploring (running any allowed type), times 2^32
    const Machine *machines;
    int64 n_runs, seed, first_episode, learns;
    int *waiting, *queues, *freed, *blocked_now;  // per warp, with room for the largest dag
    int64 room;
    int *counts;                      // [R, 2] the number of batches, and of those that the scoring rule decided
    int *steps;                       // [R, n_steps, 4] state, type, ready nodes, and frontier or criticality
    int64 n_steps;
    short *fresh;                     // [n_fresh, width] states that are not in the table
    int64 n_fresh;
    unsigned *found;                  // the number of such states, which may exceed n_fresh
};

// Mixes the bits of a word (SplitMix64: Steele, Lea, Flood 2014).
__device__ inline word mix(word x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

const word GOLDEN = 0x9e3779b97f4a7c15ull;

// The run of a warp. The arrays of numbers per type lie in shared memory.
struct Run {
    const Job &job;
    const Machine &machine;
    const int lane, n_types;
    int64 first, dag, warp;  // the dag's first node in the stack, the numbers of the dag and of the warp
    int n_nodes;
    word *height_sum;              // [T] sums over ready nodes
    int *longest, *n_longest;      // [T, T] see `native/schedule/chains.h`
    int *most, *n_most, *n_own;
    int *head, *tail, *seen;       // of the queue of each type
    int *frontier, *state, *n_freed;

    __device__ Run(const Job &job, const Machine &machine, int64 dag, int64 warp, unsigned char *memory)
        : job(job), machine(machine), lane(threadIdx.x % 32), n_types((int)job.n_types), dag(dag), warp(warp) {
        first = job.node_ptr[dag];
        n_nodes = job.node_ptr[dag + 1] - (int)first;
        const int n = n_types;
        height_sum = (word *)memory;
        longest = (int *)(height_sum + n), n_longest = longest + n * n;
        most = n_longest + n * n, n_most = most + n, n_own = n_most + n;
        head = n_own + n, tail = head + n, seen = tail + n;
        frontier = seen + n, state = frontier + n, n_freed = state + 2 * n;
    }

    __device__ int *waiting() const { return job.waiting + warp * job.room; }
    __device__ int *queue() const { return job.queues + warp * job.room; }
    __device__ int *blocked() const { return job.blocked_now + warp * job.room * n_types; }

    __device__ bool is_ready(int type_id) const { return head[type_id] < tail[type_id]; }
    __device__ bool is_critical(int type_id) const { return most[type_id] > 0 && n_own[type_id] == n_most[type_id]; }

    // Sets up a run in which nothing has run.
    __device__ void start() {
        for (int a = lane; a < n_types; a += 32) {
            head[a] = tail[a] = seen[a] = job.segments[dag * n_types + a] - (int)first;
            if (job.frontier) frontier[a] = job.frontier[dag * n_types + a];
        }
        for (int type_id = 0; type_id < n_types; ++type_id) forget(type_id);
        __syncwarp();
        for (int node = lane; node < n_nodes; node += 32) {
            const int n_inputs = job.n_inputs[first + node];
            waiting()[node] = n_inputs;
            if (n_inputs == 0) make_ready(node);
        }
        if (job.blocked)
            for (int64 i = lane; i < (int64)n_nodes * n_types; i += 32) blocked()[i] = job.blocked[first * n_types + i];
        __syncwarp();
        take_in();
    }

    // Appends a node to the queue of its type. Lanes may do so in any order, because queues serve as sets.
    __device__ void make_ready(int node) {
        const int type_id = job.type_ids[first + node];
        queue()[atomicAdd(tail + type_id, 1)] = node;
        atomicAdd(height_sum + type_id, (word)job.height[first + node]);
    }

    // Resets the counts of a type that has no ready node.
    __device__ void forget(int type_id) {
        for (int a = lane; a < n_types; a += 32)
            longest[type_id * n_types + a] = -1, n_longest[type_id * n_types + a] = 0;
        if (lane == 0) height_sum[type_id] = 0;
    }

    // Counts the nodes that became ready: each group of lanes takes a node, and each lane of a group a type. There is
    // no barrier at the end: other lanes read the results only after the barrier of `encode`.
    __device__ void take_in() {
        int size = 1;
        while (size < n_types && size < 32) size *= 2;
        for (int type_id = 0; type_id < n_types; ++type_id)
            for (int a = lane % size; seen[type_id] < tail[type_id] && a - lane % size < n_types; a += size)
                take_in(type_id, a, size);
        __syncwarp();
        for (int a = lane; a < n_types; a += 32) {
            int u_most = 0, n = 0;
            for (int type_id = 0; type_id < n_types; ++type_id) {
                const int u = longest[type_id * n_types + a];
                n = (u > u_most ? 0 : n) + (u >= u_most ? n_longest[type_id * n_types + a] : 0);
                u_most = u > u_most ? u : u_most;
            }
            most[a] = u_most, n_most[a] = n, seen[a] = tail[a];
            n_own[a] = longest[a * n_types + a] == u_most ? n_longest[a * n_types + a] : 0;
        }
    }

    __device__ void take_in(int type_id, int a, int size) {
        int u_most = -1, n = 0;
        for (int i = seen[type_id] + lane / size; i < tail[type_id] && a < n_types; i += 32 / size)
            add(u_most, n, job.ahead[(first + queue()[i]) * n_types + a], 1);
        for (int step = size; step < 32; step *= 2) {
            const int u = __shfl_xor_sync(ALL, u_most, step), n_other = __shfl_xor_sync(ALL, n, step);
            add(u_most, n, u, n_other);
        }
        if (lane >= size || a >= n_types) return;
        add(u_most, n, longest[type_id * n_types + a], n_longest[type_id * n_types + a]);
        longest[type_id * n_types + a] = u_most, n_longest[type_id * n_types + a] = n;
    }

    // Combines two maxima and their multiplicities: keeps the larger one, and adds the multiplicities of equal ones.
    __device__ static void add(int &most, int &n, int u, int n_other) {
        if (u == most) n += n_other;
        if (u > most) most = u, n = n_other;
    }

    // Writes the current state, as `table.py` defines it.
    __device__ void encode() {
        for (int a = lane; a < n_types; a += 32) {
            const int n_ready = tail[a] - head[a];
            int rank = n_ready > 0;
            for (int b = 0; b < n_types && n_ready > 0; ++b) {
                const int other = tail[b] - head[b];
                rank += other > n_ready || (other == n_ready && b < a);
            }
            state[a] = machine.encoding == SORT ? rank : (n_ready > 0) + (machine.encoding == MAX && rank == 1);
            state[n_types + a] = is_critical(a);
        }
        __syncwarp();
    }

    // Returns the number of the state, or -1 if it is not in the table. All lanes compute the hash, which is that of
    // `ValueTable::slot_of` in `native/policies/machine.cpp`, and share the comparison with a state of the table.
    __device__ int find_state() const {
        const int width = machine.critical ? 2 * n_types : n_types;
        unsigned code = 2166136261u;  // FNV-1a
        for (int i = 0; i < width; ++i) code = (code ^ (unsigned)state[i]) * 16777619u;
        for (unsigned slot = code;; ++slot) {
            const int number = machine.slots[slot & (unsigned)(machine.n_slots - 1)];
            bool differs = false;
            for (int i = lane; number >= 0 && i < width; i += 32)
                differs |= machine.states[(int64)number * width + i] != state[i];
            if (number < 0 || !__any_sync(ALL, differs)) return number;
        }
    }

    // Returns a random number of 32 bits for a type in a step of an episode. It depends only on these, not on the order
    // of threads.
    __device__ static word draw(word episode, int step, int a) {
        return mix(mix(episode + (word)step * GOLDEN) + (word)a * GOLDEN) >> 32;
    }

    // Returns the allowed type that comes first, in the low half, and its rank in the high half. Ranks are those of the
    // state, or random numbers if the step explores. All bits are set if no type may run.
    __device__ word choose(int number, bool explores, word episode, int step) const {
        bool any_critical = false;
        for (int a = lane; a < n_types; a += 32) any_critical |= is_critical(a);
        const bool masked = __any_sync(ALL, any_critical) && machine.mask;
        word best = ~0ull;
        for (int a = lane; a < n_types; a += 32) {
            if (!(masked ? is_critical(a) : is_ready(a))) continue;
            const word rank = number < 0 ? NONE : machine.ranks[(int64)number * n_types + a];
            const word place = (explores ? draw(episode, step, a) : rank) << 32 | (word)a;
            best = place < best ? place : best;
        }
        for (int step = 16; step > 0; step /= 2) {
            const word other = __shfl_xor_sync(ALL, best, step);
            best = other < best ? other : best;
        }
        return best;
    }

    // Returns the ready type with the highest score; see `rules.py`.
    __device__ int highest_score() const {
        const double rounding = 1e-9, *weights = machine.weights;
        double highest = 0, best_score = 0;
        for (int a = 0; a < n_types; ++a) {
            const double mean = is_ready(a) ? (double)height_sum[a] / (tail[a] - head[a]) : 0;
            highest = mean > highest ? mean : highest;
        }
        int best = -1;
        for (int a = 0; a < n_types; ++a) {
            if (!is_ready(a)) continue;
            const int n_ready = tail[a] - head[a], n_unrun = job.segments[dag * n_types + a + 1] - (int)first - head[a];
            double score = product(weights[0], n_own[a] == n_most[a]);
            score = sum(score, product(weights[1], n_ready) / n_unrun);
            score = sum(score, product(weights[2], (double)n_own[a] / n_most[a]));
            score = sum(score, product(weights[3], (double)height_sum[a]) / product(n_ready, highest));
            if (best < 0 || score > sum(best_score, rounding)) best = a, best_score = score;
        }
        return best;
    }

    // Runs the ready nodes of a type. The first barrier lets all lanes finish reading the counts that change next.
    __device__ void step(int type_id) {
        const int begin = head[type_id], end = tail[type_id];
        __syncwarp();
        forget(type_id);
        if (lane == 0) head[type_id] = end;
        __syncwarp();
        for (int i = begin + lane; i < end; i += 32) {
            const int64 node = first + queue()[i];
            for (int r = job.reader_ptr[node]; r < job.reader_ptr[node + 1]; ++r) {
                const int reader = job.readers[r] - (int)first;
                if (atomicAdd(waiting() + reader, -1) == 1) make_ready(reader);
            }
        }
        if (job.blocked) unblock(type_id, queue() + begin, end - begin);
        __syncwarp();
        take_in();
    }

    // Updates the frontiers after nodes of a type ran. Readers of other types that are no longer blocked unblock their
    // own readers in the next round; `list` holds them, one round after the other.
    __device__ void unblock(int type_id, const int *nodes, int n) {
        int *const list = job.freed + warp * job.room;
        if (lane == 0) frontier[type_id] -= n, *n_freed = 0;
        __syncwarp();
        for (int done = 0; n > 0;) {
            for (int i = lane; i < n; i += 32)
                for (int r = job.reader_ptr[first + nodes[i]]; r < job.reader_ptr[first + nodes[i] + 1]; ++r) {
                    const int reader = job.readers[r] - (int)first;
                    if (atomicAdd(blocked() + (int64)reader * n_types + type_id, -1) != 1) continue;
                    if (job.type_ids[first + reader] == type_id) atomicAdd(frontier + type_id, 1);
                    else list[atomicAdd(n_freed, 1)] = reader;
                }
            __syncwarp();
            nodes = list + done, n = *n_freed - done, done = *n_freed;
            __syncwarp();
        }
    }

    // Keeps a state that is not in the table, if there is room. Returns its number, -1 - k for fresh state k.
    __device__ int keep_state() const {
        unsigned place = lane == 0 ? atomicAdd(job.found, 1u) : 0;
        place = __shfl_sync(ALL, place, 0);
        const int width = machine.critical ? 2 * n_types : n_types;
        for (int i = lane; place < job.n_fresh && i < width; i += 32) job.fresh[place * width + i] = (short)state[i];
        return -1 - (int)place;
    }
};

// Schedules the dag of a run. If no allowed type has a rank, for example in an unknown state, the scoring rule decides;
// but if the machine learns, the type with the lowest number runs, and an unknown state is kept.
__device__ void play(const Job &job, int64 number, int64 warp, unsigned char *memory) {
    Run run(job, job.machines[job.machine_of[number]], job.dag_of[number], warp, memory);
    const word episode = mix((word)job.seed + (word)(job.first_episode + number) * GOLDEN), chance = job.chances[number];
    int n_batches = 0, n_unseen = 0;
    for (run.start();; ++n_batches) {
        run.encode();
        int state = run.find_state();
        const bool explores = Run::draw(episode, n_batches, run.n_types) < chance;
        const word best = run.choose(state, explores, episode, n_batches);
        if (best == ~0ull) break;
        const bool unseen = !explores && !job.learns && best >> 32 == NONE;
        const int type_id = unseen ? run.highest_score() : (int)(best & ALL);
        n_unseen += unseen;
        if (job.learns && state < 0) state = run.keep_state();
        if (run.lane == 0 && n_batches < job.n_steps) {
            int *const step = job.steps + 4 * (number * job.n_steps + n_batches);
            step[0] = state, step[1] = type_id, step[2] = run.tail[type_id] - run.head[type_id];
            step[3] = job.frontier ? run.frontier[type_id] : run.is_critical(type_id);
        }
        run.step(type_id);
    }
    if (run.lane == 0) job.counts[2 * number] = n_batches, job.counts[2 * number + 1] = n_unseen;
}

// Plays all runs. Each warp has `warp_bytes` bytes of shared memory.
extern "C" __global__ void __launch_bounds__(THREADS, 1) play_all(int64 job_, int64 warp_bytes, int64) {
    BLOCK_MEMORY(memory);
    const Job &job = *(const Job *)job_;
    const int64 warps = blockDim.x / 32, own = threadIdx.x / 32, warp = blockIdx.x * warps + own;
    for (int64 run = warp; run < job.n_runs; run += gridDim.x * warps)
        play(job, run, warp, memory + own * warp_bytes);
}
