#include "models/train/gradient_buckets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "models/model.h"

namespace lockstep {

GradientBuckets::GradientBuckets(Parameters& parameters, int64_t bucket_bytes)
    : parameters_(parameters),
      bucket_of_(parameters.count()),
      marks_(parameters.count()) {
  const std::span<float> all = parameters.gradients();
  int64_t end = static_cast<int64_t>(all.size());  // Of the open bucket.
  int members = 0;                                 // Parameters in it.
  for (int index = parameters.count() - 1; index >= 0; --index) {
    const int64_t begin = parameters.specs()[index].offset;
    bucket_of_[index] = count();
    ++members;
    const int64_t bytes = (end - begin) * SizeOf(DataType::kFloat32);
    if (bytes >= bucket_bytes || index == 0) {
      buckets_.push_back({all.subspan(begin, end - begin), members, members});
      end = begin;
      members = 0;
    }
  }
}

void GradientBuckets::MarkReady(int index,
                                absl::FunctionRef<void(int)> complete) {
  if (++marks_[index] > 1) return;  // Reported by FinishStep.
  if (--buckets_[bucket_of_[index]].missing > 0) return;
  while (next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].missing == 0) {
    complete(static_cast<int>(next_bucket_));
    ++next_bucket_;
  }
}

absl::Status GradientBuckets::FinishStep() {
  const absl::Status status = CheckMarks();
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  std::ranges::fill(marks_, 0);
  next_bucket_ = 0;
  return status;
}

absl::Status GradientBuckets::CheckMarks() const {
  const auto wrong =
      std::ranges::find_if(marks_, [](int marks) { return marks != 1; });
  if (wrong == marks_.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the gradient of parameter ",
      parameters_.specs()[wrong - marks_.begin()].name, " was marked ready ",
      *wrong, " times in this step, not once"));
}

}  // namespace lockstep
