// Sums rows by id on a device. One thread computes each number of a sum, and adds in the order of the rows, so that
// sums are reproducible.

typedef long long int64;

// The rows to sum. After the struct come the start of each sum's rows in `order`, the end of the last, and `order`: the
// numbers of the rows, sorted so that rows with one id are adjacent.
struct Task {
    int64 step, width;  // the row stride, numbers per row
    int64 n_sums;
    int64 is_wide;  // whether numbers are double instead of float
};

template <class real> __device__ inline void add_rows(const Task &task, const real *rows, real *sums) {
    const int64 *starts = (const int64 *)(&task + 1), *order = starts + task.n_sums + 1;
    const int64 first = (int64)blockIdx.x * blockDim.x + threadIdx.x, size = task.n_sums * task.width;
    for (int64 i = first; i < size; i += (int64)gridDim.x * blockDim.x) {
        const int64 sum = i / task.width, column = i - sum * task.width;
        real total = rows[order[starts[sum]] * task.step + column];
        for (int64 j = starts[sum] + 1; j < starts[sum + 1]; ++j) total += rows[order[j] * task.step + column];
        sums[i] = total;
    }
}

// Takes the addresses of a task, of the first row, and of the sums, whose rows are contiguous.
extern "C" __global__ void sum_rows(int64 task_, int64 rows, int64 sums) {
    const Task &task = *(const Task *)task_;
    if (task.is_wide) add_rows(task, (const double *)rows, (double *)sums);
    else add_rows(task, (const float *)rows, (float *)sums);
}
