// Loops that the compiler vectorises, also for processors with AVX2.
#ifndef LOCKSTEP_SAMPLER_AVX2_H_
#define LOCKSTEP_SAMPLER_AVX2_H_

// A loop is written once, in a function marked LOCKSTEP_ALWAYS_INLINE, and
// called from two others, one of which is marked LOCKSTEP_TARGET_AVX2; HasAvx2
// chooses between them. It is compiled for vectors of 256 bits there, and for
// what every processor of the kind has in the other. Integers and single
// divisions come out the same.
#define LOCKSTEP_ALWAYS_INLINE inline __attribute__((always_inline))

#ifdef __x86_64__
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define LOCKSTEP_TARGET_AVX2
#endif

namespace lockstep {

// Whether this processor has AVX2; false where there is no such thing.
inline bool HasAvx2() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_AVX2_H_
