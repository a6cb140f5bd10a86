// The epochs that the conformance suite asks samplers for.
#include "conformance/sampling/sampling_case.h"

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep {

std::vector<SamplingCase> SamplingKinds() {
  std::vector<SamplingCase> kinds;
  for (const Semantics semantics :
       {Semantics::kTorch, Semantics::kPaddle, Semantics::kExact}) {
    for (const Shuffle shuffle :
         {Shuffle::kNone, Shuffle::kOwn, Shuffle::kKeyed}) {
      if (semantics == Semantics::kPaddle && shuffle == Shuffle::kKeyed) {
        continue;
      }
      for (const bool drop_tail : {false, true}) {
        if (drop_tail && semantics != Semantics::kTorch) continue;
        for (const bool drop_last : {false, true}) {
          kinds.push_back({.semantics = semantics,
                           .shuffle = shuffle,
                           .drop_tail = drop_tail,
                           .drop_last = drop_last});
        }
      }
    }
  }
  return kinds;
}

const char* Name(Semantics semantics) {
  switch (semantics) {
    case Semantics::kTorch:
      return "torch";
    case Semantics::kPaddle:
      return "paddle";
    case Semantics::kExact:
      break;
  }
  return "exact";
}

std::string KindName(const SamplingCase& kind) {
  return absl::StrCat(kind.semantics == Semantics::kTorch    ? "Torch"
                      : kind.semantics == Semantics::kPaddle ? "Paddle"
                                                             : "Exact",
                      kind.shuffle == Shuffle::kNone  ? "InOrder"
                      : kind.shuffle == Shuffle::kOwn ? "Shuffled"
                                                      : "Keyed",
                      kind.drop_tail ? "DropTail" : "",
                      kind.drop_last ? "DropLast" : "");
}

void PrintTo(const SamplingCase& kind, std::ostream* out) {
  *out << KindName(kind);
}

std::string ToString(const SamplingCase& c) {
  return absl::StrCat(Name(c.semantics),
                      c.shuffle == Shuffle::kNone  ? ", in order"
                      : c.shuffle == Shuffle::kOwn ? ", shuffled"
                                                   : ", keyed shuffle",
                      c.drop_tail ? ", drop_tail" : "",
                      c.drop_last ? ", drop_last" : "", ", n=", c.dataset_size,
                      " P=", c.world_size, " B=", c.batch_size);
}

std::vector<SamplingCase> CasesAt(SamplingCase kind, int world_size) {
  std::vector<SamplingCase> cases;
  kind.world_size = world_size;
  for (int64_t n = 1; n <= kMaxDatasetSize; ++n) {
    for (int64_t batch = 1; batch <= kMaxBatchSize; ++batch) {
      kind.dataset_size = n;
      kind.batch_size = batch;
      cases.push_back(kind);
    }
  }
  return cases;
}

std::vector<SamplingCase> CasesOf(std::span<const int64_t> dataset_sizes,
                                  std::span<const int> world_sizes,
                                  std::span<const int64_t> batch_sizes) {
  std::vector<SamplingCase> cases;
  for (SamplingCase kind : SamplingKinds()) {
    for (const int64_t n : dataset_sizes) {
      for (const int world_size : world_sizes) {
        for (const int64_t batch : batch_sizes) {
          kind.dataset_size = n;
          kind.world_size = world_size;
          kind.batch_size = batch;
          cases.push_back(kind);
        }
      }
    }
  }
  return cases;
}

}  // namespace lockstep
