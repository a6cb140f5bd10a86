// Tries causes on the reference until one gives a rank's output.
#include "conformance/collectives/collective_causes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "conformance/collectives/collective_case.h"

namespace lockstep::conformance {
namespace {

// With up to so many ranks, every order is tried.
constexpr int kEveryOrder = 4;

class Causes {
 public:
  explicit Causes(const WrongOutput& output)
      : output_(output), call_(output.call) {}

  std::string First() const {
    for (const auto cause :
         {&Causes::NotWritten, &Causes::Swapped, &Causes::OtherRoot,
          &Causes::Unscaled, &Causes::Twice, &Causes::WrongPart,
          &Causes::OtherOrder}) {
      const std::string text = (this->*cause)();
      if (!text.empty()) return absl::StrCat(", as if ", text);
    }
    return "";
  }

 private:
  bool Is(const std::optional<Bytes>& bytes) const {
    return bytes.has_value() && bytes->size() == output_.want.size() &&
           !Difference(call_, output_.got, *bytes).has_value();
  }

  bool IsOf(const CollectiveCase& call, const InputMistake& taken = {}) const {
    return Is(
        OutputOf(call, output_.order, output_.world_size, output_.rank, taken));
  }

  std::string NotWritten() const {
    if (Is(output_.before)) return "nothing had been written";
    Bytes some = output_.want;
    const int64_t element = SizeOf(call_.type);
    std::copy(output_.before.end() - element, output_.before.end(),
              some.end() - element);
    return Is(some) ? "the last element had not been written" : "";
  }

  std::string Swapped() const {
    Bytes swapped = output_.want;
    const int64_t element = SizeOf(call_.type);
    std::swap_ranges(swapped.begin(), swapped.begin() + element,
                     swapped.end() - element);
    return Is(swapped) ? "the first and the last element had changed places"
                       : "";
  }

  std::string OtherRoot() const {
    if (call_.operation != Operation::kBroadcast &&
        call_.operation != Operation::kScatter) {
      return "";
    }
    CollectiveCase other = call_;
    for (other.root = 0; other.root < output_.world_size; ++other.root) {
      if (other.root != call_.root && IsOf(other)) {
        return absl::StrCat("rank ", other.root, " were the root");
      }
    }
    return "";
  }

  std::string Unscaled() const {
    if (!Reduces(call_.operation) || call_.op != ReduceOp::kAverage) return "";
    CollectiveCase sum = call_;
    sum.op = ReduceOp::kSum;
    return IsOf(sum) ? "it were the sum, not the average" : "";
  }

  std::string Twice() const {
    if (!Reduces(call_.operation)) return "";
    for (int rank = 0; rank < output_.world_size; ++rank) {
      if (IsOf(call_, {.ranks = {}, .twice = rank})) {
        return absl::StrCat("rank ", rank, "'s input were taken twice");
      }
    }
    return "";
  }

  std::string WrongPart() const {
    if (!Reduces(call_.operation)) return "";
    for (int rank = 0; rank < output_.world_size; ++rank) {
      if (IsOf(call_, {.ranks = {}, .twice = rank, .last_part = true})) {
        return absl::StrCat("the last part of rank ", rank,
                            "'s input were taken twice");
      }
      if (IsOf(call_, {.ranks = {}, .unwritten = rank})) {
        return absl::StrCat("the last part of rank ", rank,
                            "'s input had been read before it was written");
      }
    }
    return "";
  }

  std::string OtherOrder() const {
    if (!Reduces(call_.operation)) return "";
    if (call_.uniform) {
      CollectiveCase by_size = call_;
      by_size.uniform = false;
      if (IsOf(by_size)) return "it were added in the order of its size";
    }
    for (const std::vector<int>& ranks : Orders()) {
      if (IsOf(call_, {.ranks = ranks, .twice = -1})) {
        return absl::StrCat("the ranks were added in the order ",
                            absl::StrJoin(ranks, ", "));
      }
    }
    return "";
  }

  // Returns the orders of the ranks, except the natural one.
  std::vector<std::vector<int>> Orders() const {
    std::vector<int> order(static_cast<size_t>(output_.world_size));
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::vector<int>> orders;
    if (output_.world_size <= kEveryOrder) {
      while (std::next_permutation(order.begin(), order.end())) {
        orders.push_back(order);
      }
      return orders;
    }
    for (size_t first = 0; first < order.size(); ++first) {
      orders.push_back(order);
      orders.emplace_back(order.rbegin(), order.rend());
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
    orders.erase(orders.begin());
    return orders;
  }

  const WrongOutput& output_;
  const CollectiveCase& call_;
};

}  // namespace

std::string CauseOfOutput(const WrongOutput& output) {
  return output.want.empty() ? "" : Causes(output).First();
}

std::string CauseOfStrayOutput(const CollectiveCase& call, AdditionOrder order,
                               int world_size, int rank, const std::byte* got) {
  if (!HasRoot(call.operation) || call.operation == Operation::kSend) return "";
  CollectiveCase own = call;
  own.root = rank;
  const std::optional<Bytes> output = OutputOf(own, order, world_size, rank);
  if (!output.has_value() || output->empty() ||
      Difference(own, got, *output).has_value()) {
    return "";
  }
  return absl::StrCat(", as if rank ", rank, " were the root");
}

}  // namespace lockstep::conformance
