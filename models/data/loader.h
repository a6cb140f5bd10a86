// Loads batches by worker threads, ahead of the training step.
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

// A source of samples for batches. Programs use ImageSource; tests may use
// their own.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual ImageShape shape() const = 0;  // The shape of every sample.

  // Writes the sample of the key to `out`, host float32 of shape().size().
  // Several threads may call this at once, each with its own `worker` number in
  // [0, workers); the result must not depend on the number. Errors name the
  // sample's file.
  virtual absl::StatusOr<SampleLabel> Load(const SampleKey& key, int worker,
                                           std::span<float> out) = 0;
};

// A data set's images, transformed. Borrows the data set.
class ImageSource final : public SampleSource {
 public:
  // workers: the number of threads that will call Load; 0 counts as 1.
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

// Allocates memory for batches: at least `bytes` bytes, at least one, aligned
// to 64 bytes. Returns null if there is no memory. The memory is released with
// the last copy of the pointer. For batches that a GPU copies, models/data/cuda
// has PinnedBatches.
using AllocateBatches = std::function<std::shared_ptr<std::byte>(int64_t)>;

struct LoaderOptions {
  // The number of threads that load ahead of the step. 0: Next loads in the
  // caller's thread.
  int workers = 0;
  // The largest number of bytes of batches (float32 pixels and labels) at any
  // time, including the caller's batch. The loader holds as many batches as
  // fit, at most Loader::kMaxBatches. Each worker also needs memory for one
  // decoded image and twice its result, which is not counted here.
  int64_t max_bytes = int64_t{256} << 20;
  AllocateBatches allocate = nullptr;  // Null: ordinary memory.
};

// One batch. Valid until the next call of Next, or until the loader is
// destroyed.
struct LoadedBatch {
  std::span<const float> images;       // Host [n, height, width, channels].
  std::span<const int32_t> labels;     // Host [n].
  std::span<const SampleLabel> mixed;  // Labels with mixtures.
};

// One pass over a list of batches, in order. Borrows the source. Not thread
// safe: one thread calls Next. The destructor may run at any time; it waits
// until each worker has finished its current piece.
class Loader {
 public:
  // The number of batches that evens out images of different sizes.
  static constexpr int64_t kMaxBatches = 4;

  // batches: this rank's part of each global batch, as indices of the data set;
  // may be empty. Reading begins at once. Errors: kInvalidArgument if one batch
  // needs more than max_bytes, or the number of workers is negative;
  // kResourceExhausted if there is no memory.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(
      SampleSource& source, uint64_t seed, int64_t epoch,
      std::vector<std::vector<int64_t>> batches, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next batch; there must be one. If samples of the batch have
  // errors, returns the error of the first of them in the batch's order. Every
  // later call returns the same error.
  absl::StatusOr<LoadedBatch> Next();

  // The total time of calls of Next: the time that the caller waited for data.
  absl::Duration waited() const { return waited_; }
  // The largest number of batches held at once.
  int64_t slots() const { return slot_count_; }

 private:
  // The state of a batch. Batch b uses slot b % slots() and the slot's memory.
  struct Slot {
    int64_t batch = -1;
    int64_t remaining = 0;  // The samples that are not loaded yet.
    // The first sample that failed, if `status` is an error.
    int64_t bad_sample = 0;
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
  // Return the batch's images, labels and mixed labels.
  std::span<float> Images(int64_t batch) const;
  std::span<int32_t> Labels(int64_t batch) const;
  std::span<SampleLabel> Mixed(int64_t batch) const;
  int64_t SizeOf(int64_t batch) const {
    return static_cast<int64_t>(batches_[batch].size());
  }

  // BeginBatches, TakePiece and IsReady require mutex_. BeginBatches: when all
  // samples of a batch are taken and a slot is free, begins the next batch and
  // wakes the workers.
  void BeginBatches();
  // Takes at most `most` samples of the current batch.
  Piece TakePiece(int64_t most);
  bool IsReady(int64_t batch) const;
  // Loads a piece and records the result.
  void LoadPiece(const Piece& piece, int worker);
  void RunWorker(int worker);

  SampleSource& source_;
  const uint64_t seed_;
  const int64_t epoch_;
  const std::vector<std::vector<int64_t>> batches_;
  const int64_t image_values_;
  int64_t max_batch_samples_ = 0;  // The largest batch's samples.
  int64_t piece_size_ = 1;
  int64_t slot_bytes_ = 0;
  int64_t slot_count_ = 0;
  std::shared_ptr<std::byte> memory_;  // [slots, slot_bytes].
  int64_t next_ = 0;     // The number of the batch that Next returns next.
  absl::Status failed_;  // The error that Next returned.
  absl::Duration waited_;

  // std::mutex in place of absl::Mutex, because ThreadSanitizer does not see
  // into the distribution's build of absl. Guards all members below except
  // `workers_`.
  std::mutex mutex_;
  std::condition_variable work_;   // Notified when a piece can be taken.
  std::condition_variable ready_;  // Notified when a batch is loaded.
  std::vector<Slot> slots_;
  // The samples that are not yet taken of the batch that was begun last. Pieces
  // are taken in order.
  Piece untaken_ = {-1, 0, 0};
  // The caller has finished the batches before this one.
  int64_t released_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_DATA_LOADER_H_
