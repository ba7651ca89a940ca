#include "support/processor.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef AUTOBATCH_X86
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace autobatch {
namespace {

#ifdef AUTOBATCH_X86
struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers ask(uint32_t leaf, uint32_t subleaf) {
  Registers found;
#ifdef _MSC_VER
  int words[4];
  __cpuid(words, 0);
  if ((uint32_t)words[0] < leaf) return found;
  __cpuidex(words, (int)leaf, (int)subleaf);
  found = {(uint32_t)words[0], (uint32_t)words[1], (uint32_t)words[2], (uint32_t)words[3]};
#else
  __get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx);
#endif
  return found;
}

// Returns the set of registers that the operating system saves, as bits (XCR0).
uint64_t saved_registers() {
#ifdef _MSC_VER
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
#endif
}

bool has_bits(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

Processor ask_processor() {
  constexpr uint32_t OSXSAVE = 1u << 27, AVX2 = 1u << 5, BF16 = 1u << 5;
  constexpr uint32_t AVX512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // F, DQ, CD, BW, VL
  constexpr uint32_t AMX = 1u << 22 | 1u << 24;                                      // bf16, tiles
  constexpr uint64_t YMM = 0x6, ZMM = 0xe6, TILES = 0x60000;
  const char* disabled = getenv("AUTOBATCH_DISABLE_CPU_FEATURES");
  if (!disabled) disabled = "";
  Processor found;
  if (!has_bits(ask(1, 0).ecx, OSXSAVE) || strstr(disabled, "avx2")) return found;
  uint64_t saved = saved_registers();
  Registers extended = ask(7, 0);
  found.has_avx2 = has_bits(saved, YMM) && has_bits(extended.ebx, AVX2);
  found.has_avx512 =
      found.has_avx2 && has_bits(saved, ZMM) && has_bits(extended.ebx, AVX512) && !strstr(disabled, "avx512");
  found.has_bf16 = found.has_avx512 && extended.eax >= 1 && has_bits(ask(7, 1).eax, BF16);
  found.has_amx = found.has_bf16 && has_bits(saved, TILES) && has_bits(extended.edx, AMX) && !strstr(disabled, "amx");
  return found;
}
#else
Processor ask_processor() { return {}; }
#endif

const Processor FOUND = ask_processor();

}  // namespace

const Processor& processor() { return FOUND; }

}  // namespace autobatch
