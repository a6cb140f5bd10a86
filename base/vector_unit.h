// The vector instructions of this processor.
#ifndef LOCKSTEP_BASE_VECTOR_UNIT_H_
#define LOCKSTEP_BASE_VECTOR_UNIT_H_

namespace lockstep {

// Instruction sets that loops are compiled for, from the least to the best.
enum class VectorUnit {
  kBaseline,  // What every processor of the architecture has.
  kAvx2,      // With F16C.
  kAvx512,    // As of Skylake servers; likewise.
};

// The best that this processor has.
VectorUnit BestVectorUnit();

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_VECTOR_UNIT_H_
