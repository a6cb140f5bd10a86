// What a rank says of itself as it joins a group.
#ifndef LOCKSTEP_COLLECTIVES_MPI_MPI_INTRODUCTION_H_
#define LOCKSTEP_COLLECTIVES_MPI_MPI_INTRODUCTION_H_

#include <array>
#include <cstdint>

#include "collectives/algorithm.h"
#include "collectives/group_options.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {

// Plain old data: it travels as bytes.
struct MpiIntroduction {
  ProcessIdentity process;
  std::array<char, 64> host = {};     // Its name, for people.
  std::array<char, 128> system = {};  // Where process numbers mean the same.
  int64_t slot_bytes = 0;
  Algorithm algorithm = Algorithm::kAuto;
};

// Of this process, with the settings that it was given.
MpiIntroduction IntroduceSelf(const GroupOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_MPI_MPI_INTRODUCTION_H_
