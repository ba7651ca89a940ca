// The instructions of this processor, and functions that are compiled for several sets of them.

#pragma once

#if (defined(__x86_64__) || defined(_M_X64)) && !defined(AUTOBATCH_BASELINE)
#define AUTOBATCH_X86 1
#include <immintrin.h>
#endif

#if defined(AUTOBATCH_X86) && !defined(_MSC_VER)
#define AUTOBATCH_TARGET(features) __attribute__((target(features)))
#else
#define AUTOBATCH_TARGET(features)
#endif
#define AUTOBATCH_AVX2 AUTOBATCH_TARGET("avx2")
#define AUTOBATCH_AVX512 AUTOBATCH_TARGET("avx512f,avx512bw,avx512dq,avx512vl,prfchw")
#define AUTOBATCH_BF16 AUTOBATCH_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prfchw")

#ifdef _MSC_VER
#define AUTOBATCH_INLINE __forceinline
#else
#define AUTOBATCH_INLINE inline __attribute__((always_inline))
#endif

namespace autobatch {

// Sets of instructions that the processor has and the system saves the registers of. AVX-512 is that of servers since
// 2017: F, CD, BW, DQ and VL.
struct Processor {
  bool has_avx2 = false, has_avx512 = false, has_bf16 = false, has_amx = false;
};

// Asks the processor once. The environment variable AUTOBATCH_DISABLE_CPU_FEATURES, "amx", "avx512" or "avx2", has the
// process run as on a processor without these instructions, and without those that came later.
const Processor& processor();

// Compiles FUNCTION, which must be AUTOBATCH_INLINE, for each set of instructions; `run` takes the best. The results
// have the same bits: nothing is contracted or reordered.
template <auto FUNCTION>
struct Vectorized;

template <class... Args, void (*FUNCTION)(Args...)>
struct Vectorized<FUNCTION> {
  static void run(Args... args) {
    if (processor().has_avx512) return run_avx512(args...);
    if (processor().has_avx2) return run_avx2(args...);
    FUNCTION(args...);
  }

 private:
  AUTOBATCH_AVX2 static void run_avx2(Args... args) { FUNCTION(args...); }
  AUTOBATCH_AVX512 static void run_avx512(Args... args) { FUNCTION(args...); }
};

}  // namespace autobatch
