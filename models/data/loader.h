// Batches, read and transformed by worker threads ahead of the step.
#ifndef LOCKSTEP_MODELS_DATA_LOADER_H_
#define LOCKSTEP_MODELS_DATA_LOADER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/transform.h"

namespace lockstep {

// Where the samples of batches come from. The product's is ImageSource.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual ImageShape shape() const = 0;  // Of every sample.

  // Writes the sample of the key to `out`, host float32 of shape().size().
  // Called by several threads at once, each with a number of its own in [0,
  // workers), which no result may depend on. Errors: name the sample's file.
  virtual absl::StatusOr<SampleLabel> Load(const SampleKey& key, int worker,
                                           std::span<float> out) = 0;
};

// A data set's images, transformed. Borrows the data set.
class ImageSource final : public SampleSource {
 public:
  // workers: how many threads there will be; 0 counts as 1.
  ImageSource(const Dataset& dataset, Transform transform, int workers);

  ImageShape shape() const override { return transform_.shape(); }
  bool mixes() const { return transform_.mixes(); }
  absl::StatusOr<SampleLabel> Load(const SampleKey& key, int worker,
                                   std::span<float> out) override;

 private:
  const Dataset& dataset_;
  const Transform transform_;
  std::vector<std::unique_ptr<TransformScratch>> scratch_;  // By worker.
};

// Memory of at least `bytes` bytes, at least one, aligned to 64, or null if
// there is none; it is released when the pointer's last copy is gone. For
// batches that a GPU copies, models/data/cuda has PinnedBatches.
using AllocateBatches = std::function<std::shared_ptr<std::byte>(int64_t)>;

struct LoaderOptions {
  // Threads that load ahead of the step; 0: Next loads in the caller's.
  int workers = 0;
  // No more than this many bytes of batches (float32 pixels and labels) exist
  // at any time, the one that the caller has included: as many batches as fit,
  // and at most Loader::kMostBatches. What each worker works on comes on top:
  // one image, decoded, and twice its result.
  int64_t max_bytes = int64_t{256} << 20;
  AllocateBatches allocate = nullptr;  // Null: ordinary memory.
};

// Valid until the next call of Next, or the loader's end.
struct LoadedBatch {
  std::span<const float> images;       // Host [n, height, width, channels].
  std::span<const int32_t> labels;     // Host [n].
  std::span<const SampleLabel> mixed;  // The same labels, with mixtures.
};

// One pass over a list of batches, in order. Borrows the source. Not thread
// safe: one thread calls Next. Destruction at any time ends the workers after
// the sample that each is at.
class Loader {
 public:
  // Enough to even out images of different sizes.
  static constexpr int64_t kMostBatches = 4;

  // batches: this rank's part of each global batch: indices of the data set;
  // may be empty. Reading begins at once. Errors: kInvalidArgument if a batch
  // alone needs more than max_bytes, or a worker count is negative;
  // kResourceExhausted if there is no memory.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(
      SampleSource& source, uint64_t seed, int64_t epoch,
      std::vector<std::vector<int64_t>> batches, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, of which there must be one. Error: of the batch's first
  // sample, in its order, that has one; every later call returns it too.
  absl::StatusOr<LoadedBatch> Next();

  // How long calls of Next took: the time that was waited for data.
  absl::Duration waited() const { return waited_; }
  // How many batches are held at most.
  int64_t slots() const { return slot_count_; }

 private:
  // How far a batch is. Batch b has slot b % slots(), and its memory.
  struct Slot {
    int64_t batch = -1;
    int64_t remaining = 0;   // Samples that are not loaded yet.
    int64_t bad_sample = 0;  // The first that failed, if `status` says so.
    absl::Status status;
  };
  // Samples [begin, end) of a batch.
  struct Piece {
    int64_t batch = 0;
    int64_t begin = 0;
    int64_t end = 0;
  };

  Loader(SampleSource& source, uint64_t seed, int64_t epoch,
         std::vector<std::vector<int64_t>> batches);

  absl::Status Allocate(const LoaderOptions& options);
  // The batch's images, labels and mixed labels.
  std::span<float> Images(int64_t batch) const;
  std::span<int32_t> Labels(int64_t batch) const;
  std::span<SampleLabel> Mixed(int64_t batch) const;
  int64_t SizeOf(int64_t batch) const {
    return static_cast<int64_t>(batches_[batch].size());
  }

  // These three want mutex_ to be held. Where all of a batch is taken, begins
  // the next one if a slot is free, and tells the workers.
  void BeginBatches();
  // At most so many samples of what is left.
  Piece Take(int64_t most);
  bool IsReady(int64_t batch) const;
  // Loads a piece and notes what became of it.
  void LoadPiece(const Piece& piece, int worker);
  void Work(int worker);

  SampleSource& source_;
  const uint64_t seed_;
  const int64_t epoch_;
  const std::vector<std::vector<int64_t>> batches_;
  const int64_t image_values_;
  int64_t most_samples_ = 0;  // Of a batch.
  int64_t piece_size_ = 1;
  int64_t slot_bytes_ = 0;
  int64_t slot_count_ = 0;
  std::shared_ptr<std::byte> memory_;  // [slots, slot_bytes].
  int64_t next_ = 0;                   // The batch that Next returns next.
  absl::Status failed_;                // What Next returned.
  absl::Duration waited_;

  // Not absl::Mutex: ThreadSanitizer does not see into the distribution's
  // build of it. Guards all that follows but `workers_`.
  std::mutex mutex_;
  std::condition_variable work_;   // Told when there is a piece to take.
  std::condition_variable ready_;  // Told when a batch is loaded.
  std::vector<Slot> slots_;
  // Pieces are taken in order; this one is what is left of the batch that has
  // been begun last.
  Piece rest_ = {-1, 0, 0};
  int64_t released_ = 0;  // The caller has done these.
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_LOADER_H_
