#include "collectives/host/call.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep {

std::string ToString(const Call& call) {
  switch (call.operation) {
    case Operation::kAllReduceSum:
      return absl::StrCat("AllReduceSum(", Name(call.type), "[", call.count,
                          "])");
    case Operation::kBroadcast:
      return absl::StrCat("Broadcast(", call.count, " bytes, root ", call.root,
                          ")");
    case Operation::kAllGather:
      return absl::StrCat("AllGather(", call.count, " bytes)");
    case Operation::kBarrier:
      return "Barrier()";
  }
  return "an unknown operation";
}

}  // namespace lockstep
