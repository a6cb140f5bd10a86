// Runs the loaders, checks the runs, and finds why a run differs from another.
#include "conformance/loading/loading_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/counter_random.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "conformance/mutant.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/loader.h"
#include "models/data/transform.h"
#include "models/model.h"
#include "models/train/test_inputs.h"
#include "models/train/trainer.h"

namespace lockstep::conformance {
namespace {

using CheckName = NameIn<kLoadingChecks>;
using Batches = std::vector<std::vector<int64_t>>;

// Returns the error of a check. Every rejection is made here.
absl::Status Wrong(CheckName check, const std::string& what) {
  return absl::DataLossError(absl::StrCat(check.name(), ": ", what));
}

const MemoryDataset& LoadingDataset() {
  static const auto* const kDataset = [] {
    constexpr ImageShape kShape = {9, 11, 3};
    std::vector<uint8_t> images, labels;
    for (int64_t i = 0; i < kLoadingSamples; ++i) {
      labels.push_back(static_cast<uint8_t>(i));
      for (int64_t k = 0; k < kShape.size(); ++k) {
        images.push_back(static_cast<uint8_t>(MixBits(k + 1)));
      }
    }
    return new MemoryDataset(kShape, kLoadingSamples, std::move(images),
                             std::move(labels));
  }();
  return *kDataset;
}

absl::StatusOr<TransformOptions> LoadingTransform(bool mixtures) {
  TransformOptions options = {.height = 6, .width = 7};
  LOCKSTEP_RETURN_IF_ERROR(ParseAugmentation("standard,jitter,erase", options));
  if (mixtures) {
    LOCKSTEP_RETURN_IF_ERROR(ParseAugmentation("mixup,cutmix", options));
  }
  return options;
}

absl::Status CheckComplete(const LoadingCase& c, const LoadedSamples& run,
                           int64_t loads) {
  const int64_t all =
      kLoadingEpochs * (kLoadingSamples - c.first_batch * c.batch_size);
  if (all > 0 && loads == all && static_cast<int64_t>(run.size()) == all) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(loads, " loads of ", run.size(),
                                          " samples, must be ", all,
                                          ", at least 1"));
}

// Records the batches that it receives for training.
class RecordingModel : public CountingModel {
 public:
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch,
                                          float gradient_scale,
                                          GradientReady ready) override {
    batches.emplace_back(
        std::vector<float>(batch.images.begin(), batch.images.end()),
        std::vector<int32_t>(batch.labels.begin(), batch.labels.end()));
    return CountingModel::ForwardBackward({}, gradient_scale, ready);
  }

  std::vector<std::pair<std::vector<float>, std::vector<int32_t>>> batches;
};

std::string SampleName(const std::pair<int64_t, int64_t>& key) {
  return absl::StrCat("sample ", key.second, " of epoch ", key.first);
}

// A wrong way to draw, with the keys from which it may have drawn a sample.
struct Cause {
  const char* what;
  std::function<std::vector<SampleKey>(
      const LoadingCase& c, const SampleKey& right, const LoadedSample& sample)>
      keys;
};

std::vector<Cause> Causes() {
  const auto with_seed = [](SampleKey key, uint64_t added) {
    key.seed += added;
    return key;
  };
  return {
      {"by the rank",
       [=](const auto&, const auto& key, const auto& sample) {
         return std::vector{with_seed(key, sample.rank)};
       }},
      {"by the number of ranks",
       [=](const auto& c, const auto& key, const auto&) {
         return std::vector{
             with_seed(key, kWorldSizeStride * (c.world_size - 1))};
       }},
      {"by the thread",
       [=](const auto& c, const auto& key, const auto&) {
         std::vector<SampleKey> keys;
         for (int thread = 0; thread <= c.workers; ++thread) {
           keys.push_back(with_seed(key, kThreadStride * thread));
         }
         return keys;
       }},
      {"by the place in the batch",
       [](const auto&, const auto& key, const auto& sample) {
         return std::vector<SampleKey>{{key.seed, key.epoch, sample.place}};
       }},
      {"by the count since the run was resumed",
       [](const auto& c, const auto& key, const auto& sample) {
         const int64_t index =
             CountedFromTheStart(c, key.epoch, sample.rank, key.index);
         return std::vector<SampleKey>{{key.seed, key.epoch, index}};
       }},
      {"one after the other",
       [](const auto&, const auto& key, const auto&) {
         std::vector<SampleKey> keys;
         for (int64_t i = 0; i < kLoadingEpochs * kLoadingSamples; ++i) {
           keys.push_back({key.seed, i / kLoadingSamples, i % kLoadingSamples});
         }
         return keys;
       }},
  };
}

// Whether the cause gives the pixels of every sample.
bool Explains(const Cause& cause, const LoadingCase& c,
              const Transform& transform, const LoadedSamples& run) {
  TransformScratch scratch;
  std::vector<float> pixels(transform.shape().size());
  return std::ranges::all_of(run, [&](const auto& entry) {
    const auto& [at, sample] = entry;
    const std::vector<SampleKey> keys =
        cause.keys(c, {c.seed, at.first, at.second}, sample);
    return std::ranges::any_of(
        keys, [&, &sample = sample](const SampleKey& key) {
          return transform.Load(LoadingDataset(), key, scratch, pixels).ok() &&
                 pixels == sample.pixels;
        });
  });
}

std::string CauseOf(const LoadingCase& c, const LoadedSamples& run) {
  const absl::StatusOr<TransformOptions> options = LoadingTransform(c.mixtures);
  if (!options.ok()) return options.status().ToString();
  const absl::StatusOr<Transform> transform =
      Transform::Create(*options, LoadingDataset());
  if (!transform.ok()) return transform.status().ToString();
  for (const Cause& cause : Causes()) {
    if (Explains(cause, c, *transform, run)) {
      return absl::StrCat("as if drawn ", cause.what);
    }
  }
  return "for no known cause";
}

}  // namespace

std::string LoadingCase::name() const {
  return absl::StrCat(world_size, " ranks, ", workers, " workers, batches of ",
                      batch_size, contiguous ? ", contiguous" : ", strided",
                      first_batch == 0
                          ? ""
                          : absl::StrCat(", from batch ", first_batch, " on"));
}

std::vector<std::vector<int64_t>> PartsOf(const LoadingCase& c, int64_t epoch,
                                          int rank) {
  std::vector<int64_t> order(kLoadingSamples);
  std::iota(order.begin(), order.end(), 0);
  if (c.shuffled) {
    const CounterRandom random(c.seed, static_cast<uint64_t>(epoch));
    for (int64_t left = kLoadingSamples; left > 1; --left) {
      std::swap(order[left - 1],
                order[random.UniformInt(static_cast<uint64_t>(left), left)]);
    }
  }
  std::vector<std::vector<int64_t>> parts;
  for (int64_t begin = c.first_batch * c.batch_size; begin < kLoadingSamples;
       begin += c.batch_size) {
    const int64_t count = std::min(c.batch_size, kLoadingSamples - begin);
    parts.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t taker =
          c.contiguous ? i * c.world_size / count : i % c.world_size;
      if (taker == rank) parts.back().push_back(order[begin + i]);
    }
  }
  return parts;
}

int64_t CountedFromTheStart(const LoadingCase& c, int64_t epoch, int rank,
                            int64_t index) {
  const auto flat = [&](const LoadingCase& from) {
    std::vector<int64_t> all;
    for (const std::vector<int64_t>& part : PartsOf(from, epoch, rank)) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  LoadingCase whole = c;
  whole.first_batch = 0;
  const std::vector<int64_t> loaded = flat(c);
  const auto at = std::ranges::find(loaded, index);
  return at == loaded.end() ? index : flat(whole)[at - loaded.begin()];
}

absl::StatusOr<LoadedSamples> LoadByLoaders(const LoadingCase& c,
                                            const SourceMutation& mutate) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TransformOptions options,
                            LoadingTransform(c.mixtures));
  LOCKSTEP_ASSIGN_OR_RETURN(const Transform transform,
                            Transform::Create(options, LoadingDataset()));
  LoadedSamples run;
  int64_t loads = 0;
  for (int rank = 0; rank < c.world_size; ++rank) {
    ImageSource real(LoadingDataset(), transform, c.workers);
    const std::unique_ptr<SampleSource> mutant =
        mutate ? mutate(real, c, rank) : nullptr;
    SampleSource& source = mutant ? *mutant : real;
    const int64_t values = source.shape().size();
    for (int64_t epoch = 0; epoch < kLoadingEpochs; ++epoch) {
      const Batches parts = PartsOf(c, epoch, rank);
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::unique_ptr<Loader> loader,
          Loader::Create(source, c.seed, epoch, parts, {.workers = c.workers}));
      for (const std::vector<int64_t>& part : parts) {
        LOCKSTEP_ASSIGN_OR_RETURN(const LoadedBatch batch, loader->Next());
        for (size_t i = 0; i < part.size(); ++i, ++loads) {
          const auto pixels = batch.images.subspan(i * values, values);
          run[{epoch, part[i]}] = {rank,
                                   static_cast<int64_t>(i),
                                   batch.mixed[i],
                                   {pixels.begin(), pixels.end()}};
        }
      }
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckComplete(c, run, loads));
  return run;
}

absl::StatusOr<LoadedSamples> LoadByTrainer(const LoadingCase& c) {
  TrainerOptions options;
  options.batch_size = c.batch_size;
  options.seed = c.seed;
  options.sharding = c.contiguous ? Sharding::kContiguous : Sharding::kStrided;
  options.loader.workers = c.workers;
  LOCKSTEP_ASSIGN_OR_RETURN(options.transform, LoadingTransform(c.mixtures));
  std::vector<RecordingModel> models(c.world_size);
  for (const absl::Status& status :
       RunRanks(Backend::kThreads, c.world_size,
                [&](Communicator& group) -> absl::Status {
                  LOCKSTEP_ASSIGN_OR_RETURN(
                      const std::unique_ptr<Trainer> trainer,
                      Trainer::Create(group, models[group.rank()],
                                      LoadingDataset(), options));
                  for (int64_t epoch = 0; epoch < kLoadingEpochs; ++epoch) {
                    LOCKSTEP_RETURN_IF_ERROR(
                        trainer->TrainEpoch(epoch, {}).status());
                  }
                  return absl::OkStatus();
                })) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  LoadedSamples run;
  int64_t loads = 0;
  for (int rank = 0; rank < c.world_size; ++rank) {
    const auto& batches = models[rank].batches;
    for (size_t b = 0; b < batches.size(); ++b) {
      const auto& [images, labels] = batches[b];
      const auto epoch =
          static_cast<int64_t>(b * kLoadingEpochs / batches.size());
      for (size_t i = 0; i < labels.size(); ++i, ++loads) {
        const size_t values = images.size() / labels.size();
        const auto pixels = std::span(images).subspan(i * values, values);
        run[{epoch, labels[i]}] = {rank,
                                   static_cast<int64_t>(i),
                                   {labels[i], labels[i], 1},
                                   {pixels.begin(), pixels.end()}};
      }
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckComplete(c, run, loads));
  return run;
}

absl::Status CheckRunsAgree(const LoadingCase& c, const LoadedSamples& one,
                            const LoadedSamples& run) {
  for (const auto& [key, sample] : run) {
    const LoadedSample& want = one.at(key);
    const std::string where = absl::StrCat(
        SampleName(key), ", on rank ", sample.rank, " (", c.name(), "), has ");
    if (sample.pixels != want.pixels) {
      return Wrong("RunsAgree", absl::StrCat(where,
                                             "other pixels than on one "
                                             "rank; ",
                                             CauseOf(c, run)));
    }
    if (sample.label != want.label) {
      return Wrong("RunsAgree", absl::StrCat(where, "another label"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckEpochsDiffer(const LoadedSamples& run) {
  for (const auto& [key, sample] : run) {
    if (key.first > 0 && run.at({0, key.second}).pixels == sample.pixels) {
      return Wrong("EpochsDiffer", absl::StrCat(SampleName(key),
                                                " has the "
                                                "pixels of epoch 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSamplesDiffer(const LoadedSamples& run) {
  for (const auto& [key, sample] : run) {
    if (key.second > 0 && run.at({key.first, 0}).pixels == sample.pixels) {
      return Wrong("SamplesDiffer", absl::StrCat(SampleName(key),
                                                 " has the "
                                                 "pixels of sample 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSeedsDiffer(const LoadedSamples& run,
                              const LoadedSamples& other_seed) {
  for (const auto& [key, sample] : run) {
    if (other_seed.at(key).pixels == sample.pixels) {
      return Wrong("SeedsDiffer", absl::StrCat(SampleName(key),
                                               " has the "
                                               "pixels of another seed"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
