// Gives the stand-in as many GPUs as LOCKSTEP_STANDIN_GPUS says, before main.
#include <cstdlib>

#include "standin/control.h"

namespace lockstep {
namespace {

[[maybe_unused]] const bool kSet = [] {
  if (const char* const count = std::getenv("LOCKSTEP_STANDIN_GPUS")) {
    standin::SetDevices({.count = std::atoi(count)});
  }
  return true;
}();

}  // namespace
}  // namespace lockstep
