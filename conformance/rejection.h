// What a check says of what it rejects.
#ifndef LOCKSTEP_CONFORMANCE_REJECTION_H_
#define LOCKSTEP_CONFORMANCE_REJECTION_H_

#include <string>

namespace lockstep {

struct Rejection {
  std::string check;    // Its name.
  std::string message;  // One line.
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REJECTION_H_
