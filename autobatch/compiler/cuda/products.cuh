// Matrix products, whose tiles are shared by all blocks of a launch.
//
// A block computes a tile of `out`. Its threads form groups, and each group multiplies its own slice of every panel
// along `inner`; in the end, the sums of the groups are added. So even if a product has few tiles, no thread has to
// walk along all of `inner`. While a panel is multiplied, the next one is loaded from memory into registers.

const int PACK = 16 / sizeof(real);   // numbers that a thread reads from shared memory at once
const int DEPTH = 64 / sizeof(real);  // numbers along `inner` of a slice

struct alignas(16) Pack {
    real of[PACK];
};

// out = a @ b, or out += a @ b.
struct Matrices {
    const real *a, *b;
    real *out;
    int64 a_step, b_step, out_step, n_rows;
    int n, inner;
    bool a_flipped, flipped, accumulate;  // whether a and b are stored transposed; whether to add to `out`
};

// The panel that a block multiplies next: N rows of a, or columns of b, by K numbers along `inner`. Its threads load it
// into registers first, and then store it in shared memory as [K, STEP].
template <int N, int K> struct Panel {
    static const int EACH = N * K / THREADS, STEP = N + PACK;  // padded: threads write to different banks
    static const int WARPS = THREADS / 32, ACROSS = K / 8 < WARPS ? K / 8 : WARPS, TURNS = K / 8 / ACROSS;
    const bool is_inner;  // whether `inner` is the contiguous axis: a warp reads 8 numbers of each of 4 rows
    const int beside, along;  // the position of the thread's first number
    const int64 step;         // the stride of the other axis
    const real *next;
    real held[EACH];

    __device__ Panel(const real *first, int64 step, bool is_inner)
        : is_inner(is_inner), beside(is_inner ? threadIdx.x / 8 % 4 + threadIdx.x / 32 / ACROSS * 4 : threadIdx.x % N),
          along(is_inner ? threadIdx.x % 8 + threadIdx.x / 32 % ACROSS * 8 : threadIdx.x / N), step(step),
          next(first + (is_inner ? beside * step + along : along * step + beside)) {}

    // Return the distance of the thread's number e from its first one, across and along `inner`, if `is_inner`.
    __device__ static int down(int e) { return e / TURNS * (WARPS / ACROSS * 4); }
    __device__ static int right(int e) { return e % TURNS * (ACROSS * 8); }

    // Loads the next K numbers along `inner`, of which k are left, from n rows; zeros beyond.
    __device__ void fetch(int n, int k) {
        n -= beside, k -= along;
        if (is_inner) {
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                held[e] = down(e) < n && right(e) < k ? next[down(e) * step + right(e)] : (real)0;
            next += K;
        } else {
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                held[e] = 0 < n && e * (THREADS / N) < k ? next[e * (THREADS / N) * step] : (real)0;
            next += K * step;
        }
    }

    __device__ void store(real *panel) const {
        real *to = panel + along * STEP + beside;
        if (is_inner) {
#pragma unroll
            for (int e = 0; e < EACH; ++e) to[right(e) * STEP + down(e)] = held[e];
        } else {
#pragma unroll
            for (int e = 0; e < EACH; ++e) to[e * (THREADS / N) * STEP] = held[e];
        }
    }
};

__device__ inline int count_tiles(const Matrices &m, int rows, int columns) {
    return (int)((m.n_rows + rows - 1) / rows) * ((m.n + columns - 1) / columns);
}

// Returns the position of a thread's number e along an axis of `size`, relative to its first number. Its n numbers come
// in packs, which are spread evenly over the axis.
__device__ inline int place_of(int e, int n, int size) { return e / PACK * (size / (n / PACK)) + e % PACK; }

// Multiplies by tiles of ROWS x COLUMNS. Each of SLICES groups of threads sums up a tile of its own, of which each
// thread holds M x N numbers.
template <int ROWS, int COLUMNS, int SLICES, int M, int N>
__device__ __forceinline__ void multiply_tiles(const Worker &worker, const Matrices &m) {
    const int K = SLICES * DEPTH, GROUP = THREADS / SLICES, ACROSS = COLUMNS / N;
    static_assert(GROUP * M * N == ROWS * COLUMNS, "the threads of a group share a tile");
    const int LEFT_STEP = Panel<ROWS, K>::STEP, RIGHT_STEP = Panel<COLUMNS, K>::STEP;
    BLOCK_MEMORY(memory);
    real *left = (real *)memory, *right = left + K * LEFT_STEP, *tiles = left;  // tiles reuse the memory of panels
    const int group = threadIdx.x / GROUP, lane = threadIdx.x % GROUP;
    const int first_row = lane / ACROSS * PACK, first_column = lane % ACROSS * PACK;
    const int across = (m.n + COLUMNS - 1) / COLUMNS, n_tiles = count_tiles(m, ROWS, COLUMNS);
    for (int tile = (int)worker.block; tile < n_tiles; tile += (int)worker.n_blocks) {
        const int64 row = (int64)(tile / across) * ROWS;
        const int column = tile % across * COLUMNS;
        Panel<ROWS, K> a(m.a + row * (m.a_flipped ? 1 : m.a_step), m.a_step, !m.a_flipped);
        Panel<COLUMNS, K> b(m.b + column * (m.flipped ? m.b_step : 1), m.b_step, m.flipped);
        const int n_rows = m.n_rows - row < ROWS ? (int)(m.n_rows - row) : ROWS;
        const int columns = m.n - column < COLUMNS ? m.n - column : COLUMNS;
        real *out = m.out + row * m.out_step + column;
        real sums[M][N];
#pragma unroll
        for (int e = 0; e < M * N; ++e) {
            const int r = place_of(e / N, M, ROWS) + first_row, c = place_of(e % N, N, COLUMNS) + first_column;
            const bool adds = m.accumulate && group == 0 && r < n_rows && c < columns;
            sums[e / N][e % N] = adds ? out[r * m.out_step + c] : (real)0;
        }
        // A software pipeline: loads panel k + K into registers, multiplies panel k in shared memory, and then, between
        // two barriers, replaces it by the loaded panel. The first iteration only loads.
        for (int k = -K; k < m.inner; k += K) {
            const int next = m.inner - k - K;
            if (next > 0) {
                a.fetch(n_rows, next);
                b.fetch(columns, next);
            }
            if (k >= 0 && k + group * DEPTH < m.inner) {
#pragma unroll 2
                for (int i = 0; i < DEPTH; ++i) {
                    const real *ours = left + (group * DEPTH + i) * LEFT_STEP + first_row;
                    const real *theirs = right + (group * DEPTH + i) * RIGHT_STEP + first_column;
                    Pack of_rows[M / PACK], of_columns[N / PACK];
#pragma unroll
                    for (int p = 0; p < M / PACK; ++p) of_rows[p] = *(const Pack *)(ours + p * (ROWS / (M / PACK)));
#pragma unroll
                    for (int q = 0; q < N / PACK; ++q) of_columns[q] = *(const Pack *)(theirs + q * (COLUMNS / (N / PACK)));
#pragma unroll
                    for (int p = 0; p < M; ++p)
#pragma unroll
                        for (int q = 0; q < N; ++q)
                            sums[p][q] += of_rows[p / PACK].of[p % PACK] * of_columns[q / PACK].of[q % PACK];
                }
            }
            __syncthreads();
            if (next > 0) {
                a.store(left);
                b.store(right);
            }
            __syncthreads();
        }
        // The upper half of the groups passes its sums to the lower half, until two groups are left.
#pragma unroll
        for (int half = SLICES / 2; half > 1; half /= 2) {
            __syncthreads();
            real *mine = tiles + (group % half * M * N) * GROUP + lane;
            if (group >= half && group < 2 * half) {
#pragma unroll
                for (int e = 0; e < M * N; ++e) mine[e * GROUP] = sums[e / N][e % N];
            }
            __syncthreads();
            if (group < half) {
#pragma unroll
                for (int e = 0; e < M * N; ++e) sums[e / N][e % N] += mine[e * GROUP];
            }
        }
        // Writes the sums of the only group, or the total of the two.
        if (SLICES == 1) {
#pragma unroll
            for (int e = 0; e < M * N; ++e) {
                const int r = place_of(e / N, M, ROWS) + first_row, c = place_of(e % N, N, COLUMNS) + first_column;
                if (r < n_rows && c < columns) out[r * m.out_step + c] = sums[e / N][e % N];
            }
            continue;
        }
        if (SLICES > 2) __syncthreads();
        if (group < 2) {
#pragma unroll
            for (int e = 0; e < M * N; ++e) {
                const int r = place_of(e / N, M, ROWS) + first_row, c = place_of(e % N, N, COLUMNS) + first_column;
                tiles[(group * ROWS + r) * COLUMNS + c] = sums[e / N][e % N];
            }
        }
        __syncthreads();
#pragma unroll 4
        for (int e = threadIdx.x; e < ROWS * COLUMNS; e += THREADS) {
            const int r = e / COLUMNS, c = e % COLUMNS;
            if (r < n_rows && c < columns) out[r * m.out_step + c] = tiles[e] + tiles[e + ROWS * COLUMNS];
        }
    }
}

// Large tiles read less memory, and small tiles keep more blocks busy. The largest tiles are for floats only, because
// doubles take twice as many registers.
const int FULL = 100;  // enough tiles for a GPU; a constant, because the size of tiles determines the order of sums

__device__ __forceinline__ void multiply(const Worker &worker, const Matrices &m) {
    if (sizeof(real) == 4 && count_tiles(m, 128, 128) >= FULL) multiply_tiles<128, 128, 1, 8, 8>(worker, m);
    else if (count_tiles(m, 64, 64) >= FULL) multiply_tiles<64, 64, 4, 8, 8>(worker, m);
    else multiply_tiles<16, 64, 8, 4, 8>(worker, m);
}
