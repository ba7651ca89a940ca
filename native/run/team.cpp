#include "run/team.h"

#include "support/atomic.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <sched.h>
#endif

namespace autobatch {
namespace {

// The units of the gate: bit 0 says that a sweep is open, bits 1 to 23 count the helpers inside, and the upper bits
// hold the number of the sweep.
constexpr int64_t OPEN = 1, MEMBER = 2, SWEEP = 1 << 24;

// Waits by spinning; after some microseconds, yields the core between two checks.
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
  open_.set();
  // Publishes the parts and the range: a helper reads them only after it has seen this number in the gate.
  store(&gate_, ++n_sweeps_ * SWEEP + OPEN);
  return n_sweeps_;
}

void Sweep::close() {
  fetch_add(&gate_, -OPEN);  // from here on, no helper can enter
  Patience patience;
  while (load(&gate_) % SWEEP) patience.wait();
  open_.remove();
}

bool Sweep::enter(int64_t number) {
  for (;;) {
    int64_t seen = load(&gate_);
    if (seen / SWEEP != number || seen % MEMBER == 0) return false;
    // Fails, and checks again, if the gate has changed meanwhile: the sweep may be closed, or a new one open.
    if (exchange_if(&gate_, seen, seen + MEMBER)) return true;
  }
}

void Sweep::leave() { fetch_add(&gate_, -MEMBER); }

void Sweep::work(Span<const BoundStep> steps, const CallSpans& list, bool leads) {
  for (int64_t number = first_; number < last_; number++) {
    Part& part = parts_[(ptrdiff_t)(number - first_)];
    int64_t begin = list.ptr[number], n = list.ptr[number + 1] - begin;
    bool is_serial = number > 0 && number <= list.is_serial.size && list.is_serial[number - 1];
    // Helpers skip what cannot be shared: a single tile, and batches that add to values of others. `done` is increased
    // after a tile's calls, so a thread that finds all tiles done also sees their results.
    if (leads || !(n == 1 || is_serial))
      for (int64_t tile; (tile = fetch_add(&part.taken, 1)) < n; fetch_add(&part.done, 1))
        call_steps(steps, list.calls, list.tile_ptr[begin + tile], list.tile_ptr[begin + tile + 1]);
    Patience patience;
    while (load(&part.done) < n) {
      if (load(&gate_) % MEMBER == 0) return;  // all is done, or an error or interrupt closed it
      patience.wait();
    }
  }
}

}  // namespace autobatch
