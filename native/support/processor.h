// The instruction sets of this processor, and functions that are compiled for several of them.

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

// The instruction sets that the processor supports and whose registers the operating system saves. AVX-512 means the
// subset that servers have had since 2017: F, CD, BW, DQ and VL.
struct Processor {
  bool has_avx2 = false, has_avx512 = false, has_bf16 = false, has_amx = false;
};

// Returns the instruction sets, which are detected once, when the module is loaded. If the environment variable
// AUTOBATCH_DISABLE_CPU_FEATURES contains "amx", "avx512" or "avx2", the process runs as if the processor lacked that
// instruction set and all later ones.
const Processor& processor();

// Compiles FUNCTION, which must be AUTOBATCH_INLINE, for each instruction set; `run` calls the best version. The
// results are bit-identical, because the compiler neither fuses nor reorders float operations.
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
