// The command `indices`: prints the indices that one rank draws in an epoch.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/catch_bad_alloc.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"
#include "sampler/shard.h"

ABSL_FLAG(std::string, semantics, "torch",
          "the sampler that draws the indices:\n"
          "torch   PyTorch's DistributedSampler, bit for bit\n"
          "paddle  Paddle's DistributedBatchSampler, bit for bit\n"
          "exact   as torch, but without padding or dropping: each sample on "
          "exactly one rank, for evaluation\n"
          "split   d2l's split_batch: the data set is one batch, and each rank "
          "takes a block of it");
ABSL_FLAG(std::optional<int64_t>, dataset_size, std::nullopt,
          "number of samples");
ABSL_FLAG(int32_t, num_replicas, 1, "number of ranks");
ABSL_FLAG(int32_t, rank, 0, "the rank whose indices are printed, from 0");
ABSL_FLAG(bool, shuffle, false, "shuffle the epoch (default: 0, 1, 2, ...)");
ABSL_FLAG(std::string, seed, "0",
          "torch and exact shuffle by seed + epoch; paddle has no seed and "
          "shuffles by the epoch alone");
ABSL_FLAG(int64_t, epoch, 0, "number of the epoch");
ABSL_FLAG(std::string, permutation, "torch",
          "how torch and exact shuffle:\n"
          "torch  as PyTorch does, with 3 to 4 bytes of memory a sample, and "
          "up to 12 for each sample of the rank\n"
          "keyed  another order, in O(1) memory, for up to 2^62 samples");
ABSL_FLAG(std::string, batch_size, "",
          "print this many indices on each line, one batch, separated by "
          "spaces; paddle also deals the samples in batches of this size "
          "(default: 1)");
ABSL_FLAG(bool, drop_last, false,
          "torch: if the number of ranks does not divide the epoch, drop its "
          "last samples instead of padding; paddle: drop a rank's last batch "
          "if it is partial");
ABSL_FLAG(int64_t, start_index, 0,
          "skip this many of the rank's indices, to see how an epoch continues "
          "after them");

namespace lockstep {
namespace {

Usage IndicesUsage() {
  return {
      .command = "indices",
      .introduction = R"(indices --dataset_size=N [FLAGS]

Prints the indices of the samples that one rank draws in an epoch, in order, one
a line, or with --batch_size one batch a line.
)",
      .sections = {{"", "semantics dataset_size=N num_replicas rank"},
                   {"order", "shuffle seed epoch permutation"},
                   {"what is printed", "batch_size=B drop_last start_index"}},
      .ending =
          R"(Exit status: 0 if all went well, 2 for a wrong flag, 1 for anything else.
)",
      .aliases = {{"nproc", "num_replicas"}, {"world_size", "num_replicas"}}};
}

// Returns the error for a wrong flag. `what` begins with the flag's name, as
// the samplers' messages do.
absl::Status WrongFlag(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

absl::StatusOr<int64_t> BatchSize() {
  const std::string text = absl::GetFlag(FLAGS_batch_size);
  int64_t size = 1;
  if (text.empty() || (absl::SimpleAtoi(text, &size) && size >= 1)) return size;
  return WrongFlag(absl::StrCat("batch_size is '", text,
                                "', must be a number of at least 1"));
}

// Returns the seed. PyTorch accepts seeds from -2^63 to 2^64 - 1.
absl::StatusOr<int64_t> Seed() {
  const std::string text = absl::GetFlag(FLAGS_seed);
  int64_t seed = 0;
  uint64_t wide_seed = 0;
  if (absl::SimpleAtoi(text, &seed)) return seed;
  if (absl::SimpleAtoi(text, &wide_seed)) {
    return static_cast<int64_t>(wide_seed);
  }
  return WrongFlag(
      absl::StrCat("seed is '", text, "', must be a number in [-2^63, 2^64)"));
}

absl::StatusOr<Permutation> PermutationKind() {
  return ParseName<Permutation>(
      "permutation", absl::GetFlag(FLAGS_permutation),
      {{"torch", Permutation::kTorch}, {"keyed", Permutation::kKeyed}});
}

template <typename S>
absl::StatusOr<EpochIndices> DrawFrom(absl::StatusOr<S> sampler) {
  LOCKSTEP_RETURN_IF_ERROR(sampler.status());
  sampler->SetEpoch(absl::GetFlag(FLAGS_epoch));
  return sampler->Draw();
}

absl::StatusOr<EpochIndices> DrawStrided(bool exact) {
  const bool drop_last = absl::GetFlag(FLAGS_drop_last);
  if (exact && drop_last) {
    return WrongFlag("drop_last: exact draws every sample and can drop none");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t seed, Seed());
  LOCKSTEP_ASSIGN_OR_RETURN(const Permutation permutation, PermutationKind());
  return DrawFrom(DistributedSampler::Create(
      {.dataset_size = *absl::GetFlag(FLAGS_dataset_size),
       .world_size = absl::GetFlag(FLAGS_num_replicas),
       .rank = absl::GetFlag(FLAGS_rank),
       .shuffle = absl::GetFlag(FLAGS_shuffle),
       .seed = seed,
       .tail = exact       ? Tail::kKeep
               : drop_last ? Tail::kDrop
                           : Tail::kPad,
       .permutation = permutation}));
}

absl::StatusOr<EpochIndices> DrawPaddle(int64_t batch_size) {
  if (absl::GetFlag(FLAGS_permutation) != "torch") {
    return WrongFlag("permutation: paddle has an order of its own");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t seed, Seed());
  if (seed != 0) {
    std::fputs("indices: note: --seed changes nothing: paddle has no seed\n",
               stderr);
  }
  return DrawFrom(
      PaddleSampler::Create({.dataset_size = *absl::GetFlag(FLAGS_dataset_size),
                             .world_size = absl::GetFlag(FLAGS_num_replicas),
                             .rank = absl::GetFlag(FLAGS_rank),
                             .batch_size = batch_size,
                             .shuffle = absl::GetFlag(FLAGS_shuffle)}));
}

absl::StatusOr<EpochIndices> DrawSplit() {
  LOCKSTEP_RETURN_IF_ERROR(Seed().status());
  LOCKSTEP_RETURN_IF_ERROR(PermutationKind().status());
  if (absl::GetFlag(FLAGS_shuffle) || absl::GetFlag(FLAGS_drop_last)) {
    return WrongFlag(
        "semantics: split supports neither --shuffle nor --drop_last");
  }
  const int64_t size = *absl::GetFlag(FLAGS_dataset_size);
  const int ranks = absl::GetFlag(FLAGS_num_replicas);
  const int rank = absl::GetFlag(FLAGS_rank);
  LOCKSTEP_RETURN_IF_ERROR(
      CheckDatasetSize(size, std::numeric_limits<int32_t>::max()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRankInWorld(rank, ranks));
  const Shard shard = SplitBatch(size, ranks, rank);
  return EpochIndices(StridedPart{
      .begin = shard.begin, .length = shard.size(), .count = shard.size()});
}

absl::StatusOr<EpochIndices> Draw(int64_t batch_size) {
  const std::string semantics = absl::GetFlag(FLAGS_semantics);
  // The samplers call this number world_size, so their error would name that.
  if (const int ranks = absl::GetFlag(FLAGS_num_replicas); ranks < 1) {
    return WrongFlag(
        absl::StrCat("num_replicas is ", ranks, ", must be at least 1"));
  }
  if (semantics == "torch") return DrawStrided(/*exact=*/false);
  if (semantics == "exact") return DrawStrided(/*exact=*/true);
  if (semantics == "paddle") return DrawPaddle(batch_size);
  if (semantics == "split") return DrawSplit();
  return WrongFlag(absl::StrCat("semantics: '", semantics,
                                "' is not one of torch, paddle, exact, split"));
}

// Prints the indices [start, end), `batch_size` of them in a line, separated by
// one space, in O(batch_size) memory.
absl::Status PrintIndices(const EpochIndices& indices, int64_t start,
                          int64_t end, int64_t batch_size) {
  // The block is large enough that each read and write costs almost nothing.
  constexpr int64_t kBlock = 1 << 14;
  std::vector<int64_t> block;
  std::string text;
  int64_t in_line = 0;
  bool written = true;
  for (int64_t begin = start; written && begin < end; begin += kBlock) {
    block.resize(std::min(kBlock, end - begin));
    indices.Read(begin, block);
    text.clear();
    for (const int64_t index : block) {
      absl::StrAppend(&text, in_line > 0 ? " " : "", index);
      if (++in_line == batch_size) {
        text += '\n';
        in_line = 0;
      }
    }
    if (begin + kBlock >= end && in_line > 0) text += '\n';
    written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }
  if (written && std::fflush(stdout) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "cannot write the indices");
}

absl::Status Run() {
  if (!absl::GetFlag(FLAGS_dataset_size).has_value()) {
    return WrongFlag("dataset_size=N is required");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t batch_size, BatchSize());
  LOCKSTEP_ASSIGN_OR_RETURN(const EpochIndices drawn, Draw(batch_size));
  const int64_t start = absl::GetFlag(FLAGS_start_index);
  const int64_t size = drawn.size();
  if (start < 0 || start > size) {
    return WrongFlag(absl::StrCat("start_index is ", start, ", must be in [0, ",
                                  size, "]: the rank draws ", size,
                                  " indices"));
  }
  // Paddle drops the last batch if it is partial.
  const bool drop_partial = absl::GetFlag(FLAGS_semantics) == "paddle" &&
                            absl::GetFlag(FLAGS_drop_last);
  if (drop_partial && size < batch_size) {
    return WrongFlag(absl::StrCat("drop_last leaves no batch: the rank draws ",
                                  size, " samples, below the batch_size of ",
                                  batch_size));
  }
  return PrintIndices(
      drawn, start, drop_partial ? size - size % batch_size : size, batch_size);
}

// Runs the command. The message of an invalid argument begins with the flag.
absl::Status RunOrExplain(std::span<char* const> /*argv*/) {
  const absl::Status status =
      CatchBadAlloc(Run, "not enough memory for an epoch of that size");
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat("--", status.message()));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  return lockstep::CommandMain(lockstep::IndicesUsage(),
                               {argv, static_cast<size_t>(argc)},
                               lockstep::RunOrExplain);
}
