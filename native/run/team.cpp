#include "run/team.h"

#include "support/atomic.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <sched.h>
#endif

namespace autobatch {
namespace {

// What being open, each thread inside, and each sweep add to the gate.
constexpr int64_t OPEN = 1, MEMBER = 2, SWEEP = 1 << 16;

// Waits a little; after some microseconds, lets other threads have the core in between.
class Patience {
 public:
  void wait() {
    if (looks_ < 2000) {
      looks_++;
      return;
    }
#ifdef _WIN32
    SwitchToThread();
#else
    sched_yield();
#endif
  }

 private:
  int looks_ = 0;
};

}  // namespace

int64_t call_steps(Span<const BoundStep> steps, Span<const Call> calls, int64_t at, int64_t end) {
  for (; at < end; at++) {
    const BoundStep& step = steps[calls[at].step];
    if (!step.function) return at;
    reinterpret_cast<Step>(step.function)(step.memory, step.descriptor, calls[at].tile);
  }
  return at;
}

int64_t Sweep::open(int64_t first, int64_t last) {
  if (!parts_.resize((ptrdiff_t)(last - first))) return -1;
  memset(parts_.data(), 0, (size_t)parts_.size() * sizeof(Part));
  first_ = first, last_ = last;
  store(&gate_, ++n_sweeps_ * SWEEP + OPEN);
  return n_sweeps_;
}

void Sweep::close() {
  fetch_add(&gate_, -OPEN);
  Patience patience;
  while (load(&gate_) % SWEEP) patience.wait();
  n_closed_ = n_sweeps_;
}

bool Sweep::enter(int64_t number) {
  for (;;) {
    int64_t seen = load(&gate_);
    if (seen / SWEEP != number || seen % MEMBER == 0) return false;
    if (exchange_if(&gate_, seen, seen + MEMBER)) return true;
  }
}

void Sweep::leave() { fetch_add(&gate_, -MEMBER); }

void Sweep::work(Span<const BoundStep> steps, const CallSpans& list, bool leads) {
  for (int64_t number = first_; number < last_; number++) {
    Part& part = parts_[(ptrdiff_t)(number - first_)];
    int64_t begin = list.ptr[number], n = list.ptr[number + 1] - begin;
    bool is_serial = number > 0 && number <= list.is_serial.size && list.is_serial[number - 1];
    if (leads || !(n == 1 || is_serial))
      for (int64_t tile; (tile = fetch_add(&part.taken, 1)) < n; fetch_add(&part.done, 1))
        call_steps(steps, list.calls, list.tile_ptr[begin + tile], list.tile_ptr[begin + tile + 1]);
    Patience patience;
    while (load(&part.done) < n) {
      if (load(&gate_) % MEMBER == 0) return;  // an interrupt closed the sweep
      patience.wait();
    }
  }
}

}  // namespace autobatch
