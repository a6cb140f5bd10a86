// The calls that the conformance suite makes of a group.
#include "conformance/collectives/collective_case.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

constexpr Operation kOperations[] = {
    Operation::kAllReduce, Operation::kReduce,    Operation::kReduceScatter,
    Operation::kAllGather, Operation::kBroadcast, Operation::kScatter,
    Operation::kGather,    Operation::kAllToAll,  Operation::kSend};

// With this count a case is made for every root, else for the last rank alone.
constexpr int64_t kEveryRoot = 3;

// A little over 16 KiB, where the order of additions changes, and odd.
int64_t LargeCount(DataType type) { return (17 << 10) / SizeOf(type) + 3; }

bool CanBeInPlace(Operation operation) {
  return operation != Operation::kBroadcast &&
         operation != Operation::kAllToAll && operation != Operation::kSend;
}

class Cases {
 public:
  explicit Cases(int world_size) : world_size_(world_size) {}

  std::vector<CollectiveCase> All() {
    for (const Operation operation : kOperations) {
      if (operation == Operation::kSend && world_size_ == 1) continue;
      for (const DataType type : kAllDataTypes) {
        if (!Reduces(operation)) {
          AddCounts({operation, type});
          continue;
        }
        for (const ReduceOp op : kAllReduceOps) {
          AddCounts({operation, type, op});
        }
      }
    }
    cases_.push_back({Operation::kBarrier});
    return cases_;
  }

 private:
  void AddCounts(CollectiveCase call) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{67},
                                LargeCount(call.type)}) {
      call.count = count;
      AddPlaces(call);
    }
    call.count = 48;
    call.values = ValueKind::kSpecial;
    AddPlaces(call);
    call.values = ValueKind::kRough;
    if (call.operation == Operation::kAllReduce) {
      call.count = LargeCount(call.type);
      call.uniform = call.in_place = true;
      cases_.push_back(call);
    }
    if (call.operation != Operation::kAllGather) return;
    call.unequal = true;
    for (const int64_t count : {int64_t{1}, LargeCount(call.type)}) {
      call.count = count;
      AddPlaces(call);
    }
  }

  void AddPlaces(CollectiveCase call) {
    call.misalignment = call.count == 67 ? 1 : 0;
    AddRoots(call);
    if (!CanBeInPlace(call.operation)) return;
    call.in_place = true;
    AddRoots(call);
  }

  void AddRoots(CollectiveCase call) {
    const bool every = HasRoot(call.operation) && call.count == kEveryRoot;
    for (int root = every ? 0 : world_size_ - 1; root < world_size_; ++root) {
      call.root = HasRoot(call.operation) ? root : 0;
      AddDistances(call, every);
    }
  }

  void AddDistances(CollectiveCase call, bool every) {
    const bool all = call.operation == Operation::kSend && every;
    for (int distance = 1; distance < (all ? world_size_ : 2); ++distance) {
      call.distance = distance;
      cases_.push_back(call);
    }
  }

  const int world_size_;
  std::vector<CollectiveCase> cases_;
};

}  // namespace

bool HasRoot(Operation operation) {
  return operation == Operation::kReduce ||
         operation == Operation::kBroadcast ||
         operation == Operation::kScatter || operation == Operation::kGather ||
         operation == Operation::kSend;
}

int DestinationOf(const CollectiveCase& call, int world_size) {
  return (call.root + call.distance) % world_size;
}

std::string ToString(const CollectiveCase& call) {
  std::string text = absl::StrCat(Name(call.operation), "(", Name(call.type),
                                  "[", call.count, "]");
  if (Reduces(call.operation)) absl::StrAppend(&text, ", ", Name(call.op));
  if (HasRoot(call.operation)) absl::StrAppend(&text, ", root ", call.root);
  if (call.operation == Operation::kSend) {
    absl::StrAppend(&text, " to +", call.distance);
  }
  if (call.unequal) absl::StrAppend(&text, ", unequal");
  if (call.uniform) absl::StrAppend(&text, ", uniform");
  absl::StrAppend(&text, ")");
  if (call.in_place) absl::StrAppend(&text, ", in place");
  if (call.misalignment != 0) {
    absl::StrAppend(&text, ", ", call.misalignment, " byte off");
  }
  if (call.values == ValueKind::kSpecial) {
    absl::StrAppend(&text, ", special values");
  }
  return text;
}

std::vector<CollectiveCase> CollectiveCases(int world_size) {
  return Cases(world_size).All();
}

}  // namespace lockstep
