// Loads a data set's samples into batches, and checks the claim "the pixels of
// a sample do not depend on ranks, workers or order".
#ifndef LOCKSTEP_CONFORMANCE_LOADING_LOADING_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_LOADING_LOADING_CHECKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/loader.h"

namespace lockstep::conformance {

// The way in which two epochs of kLoadingSamples samples are loaded. All
// samples have the same image, so that only random draws distinguish them. Each
// has its own label.
struct LoadingCase {
  int world_size = 1;
  int workers = 0;
  int64_t batch_size = 1000;  // The global batch size.
  bool contiguous = false;    // Contiguous parts of a batch, otherwise strided.
  // Shuffled by seed and epoch, otherwise in the data set's order.
  bool shuffled = false;
  bool mixtures = true;  // Mixed, beside every other augmentation.
  uint64_t seed = 1;
  // The first batch of each epoch that is loaded, as in a run that resumes
  // there.
  int64_t first_batch = 0;

  std::string name() const;
};

inline constexpr int64_t kLoadingSamples = 23;
inline constexpr int64_t kLoadingEpochs = 2;

// A sample as a model receives it.
struct LoadedSample {
  int rank = 0;
  int64_t place = 0;  // The place in the rank's part of the batch.
  SampleLabel label;
  std::vector<float> pixels;
};

// The loaded samples by epoch and index. Contains each sample of each epoch,
// except those in batches before first_batch.
using LoadedSamples = std::map<std::pair<int64_t, int64_t>, LoadedSample>;

// Wraps the source of one rank.
using SourceMutation = std::function<std::unique_ptr<SampleSource>(
    SampleSource& real, const LoadingCase& c, int rank)>;

// Returns the rank's parts of the batches of one epoch, from first_batch on.
std::vector<std::vector<int64_t>> PartsOf(const LoadingCase& c, int64_t epoch,
                                          int rank);

// If the rank loads `index` as its n-th sample of the epoch, counted from
// first_batch, returns its n-th sample counted from batch 0. Both are the same
// if first_batch is 0.
int64_t CountedFromTheStart(const LoadingCase& c, int64_t epoch, int rank,
                            int64_t index);

// Loads with one Loader for each rank, through the mutation unless it is null.
// Errors: the loader's; kInternal if a sample is not loaded exactly once, or if
// no sample is loaded.
absl::StatusOr<LoadedSamples> LoadByLoaders(
    const LoadingCase& c, const SourceMutation& mutate = nullptr);

// Loads by training with a Trainer, which shuffles, on ranks that are threads.
// Requires a case without mixtures and from batch 0 on.
absl::StatusOr<LoadedSamples> LoadByTrainer(const LoadingCase& c);

inline constexpr const char* kLoadingChecks[] = {
    "RunsAgree", "EpochsDiffer", "SamplesDiffer", "SeedsDiffer"};

// The distance between the mutants' seeds, so that no cause looks like another.
inline constexpr uint64_t kThreadStride = 100;
inline constexpr uint64_t kWorldSizeStride = 10'000;

// Checks that every sample of `run` has the pixels and the label of `one`: a
// whole run on one rank without workers, in the data set's order. Error:
// kDataLoss with the check's name, the first sample that differs, and the
// cause, if one gives the pixels of all samples. The causes are draws that
// depend on the rank, the number of ranks, the thread, the place in the batch,
// the count since the run was resumed, or the earlier draws.
absl::Status CheckRunsAgree(const LoadingCase& c, const LoadedSamples& one,
                            const LoadedSamples& run);
// Check that a sample's pixels differ in another epoch, for another sample of
// the same image, and with another seed. Errors: kDataLoss.
absl::Status CheckEpochsDiffer(const LoadedSamples& run);
absl::Status CheckSamplesDiffer(const LoadedSamples& run);
absl::Status CheckSeedsDiffer(const LoadedSamples& run,
                              const LoadedSamples& other_seed);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_LOADING_LOADING_CHECKS_H_
