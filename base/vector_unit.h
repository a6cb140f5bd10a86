// The vector instructions of this processor.
#ifndef LOCKSTEP_BASE_VECTOR_UNIT_H_
#define LOCKSTEP_BASE_VECTOR_UNIT_H_

namespace lockstep {

// Instruction sets that loops are compiled for, from the smallest to the
// largest.
enum class VectorUnit {
  kBaseline,  // Available on all processors of the architecture.
  kAvx2,      // With F16C.
  kAvx512,    // As of Skylake servers; with F16C.
};

// Returns the largest set that this processor supports.
VectorUnit BestVectorUnit();

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_VECTOR_UNIT_H_
