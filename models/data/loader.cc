#include "models/data/loader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "models/data/dataset.h"
#include "models/data/transform.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 64;

// The bytes of samples that a worker takes at a time. Small samples are taken
// together, so that locking does not dominate.
constexpr int64_t kPieceBytes = 64 << 10;

int64_t RoundedUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::shared_ptr<std::byte> AllocateOrdinary(int64_t bytes) {
  constexpr auto kAlign = std::align_val_t{kAlignment};
  auto* const memory = static_cast<std::byte*>(
      ::operator new(static_cast<size_t>(bytes), kAlign, std::nothrow));
  if (memory == nullptr) return nullptr;
  return {memory, [](std::byte* p) { ::operator delete(p, kAlign); }};
}

}  // namespace

ImageSource::ImageSource(const Dataset& dataset, Transform transform,
                         int workers)
    : dataset_(dataset), transform_(std::move(transform)) {
  for (int worker = 0; worker < std::max(workers, 1); ++worker) {
    scratch_.push_back(std::make_unique<TransformScratch>());
  }
}

absl::StatusOr<SampleLabel> ImageSource::Load(const SampleKey& key, int worker,
                                              std::span<float> out) {
  return transform_.Load(dataset_, key, *scratch_[worker], out);
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(
    SampleSource& source, uint64_t seed, int64_t epoch,
    std::vector<std::vector<int64_t>> batches, const LoaderOptions& options) {
  if (options.workers < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("workers is ", options.workers, ", must not be negative"));
  }
  std::unique_ptr<Loader> loader(
      new Loader(source, seed, epoch, std::move(batches)));
  LOCKSTEP_RETURN_IF_ERROR(loader->Allocate(options));
  try {
    for (int worker = 0; worker < options.workers; ++worker) {
      loader->workers_.emplace_back(&Loader::RunWorker, loader.get(), worker);
    }
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", options.workers,
                     " threads that load data: ", error.what()));
  }
  return loader;
}

Loader::Loader(SampleSource& source, uint64_t seed, int64_t epoch,
               std::vector<std::vector<int64_t>> batches)
    : source_(source),
      seed_(seed),
      epoch_(epoch),
      batches_(std::move(batches)),
      image_values_(source.shape().size()) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

absl::Status Loader::Allocate(const LoaderOptions& options) {
  for (const std::vector<int64_t>& batch : batches_) {
    max_batch_samples_ =
        std::max(max_batch_samples_, static_cast<int64_t>(batch.size()));
  }
  const auto image_bytes = image_values_ * static_cast<int64_t>(sizeof(float));
  piece_size_ = std::max(kPieceBytes / image_bytes, int64_t{1});
  slot_bytes_ = RoundedUp(max_batch_samples_ * image_bytes) +
                RoundedUp(max_batch_samples_ * int64_t{sizeof(int32_t)}) +
                RoundedUp(max_batch_samples_ * int64_t{sizeof(SampleLabel)});
  if (slot_bytes_ > options.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch of ", max_batch_samples_, " samples takes ", slot_bytes_,
        " bytes; at most ", options.max_bytes, " are allowed"));
  }
  const int64_t useful =
      std::min(options.workers == 0 ? 1 : kMaxBatches,
               std::max(static_cast<int64_t>(batches_.size()), int64_t{1}));
  slot_count_ =
      std::min(useful, options.max_bytes / std::max(slot_bytes_, int64_t{1}));
  slot_count_ = std::max(slot_count_, int64_t{1});
  const int64_t bytes = std::max(slot_count_ * slot_bytes_, int64_t{1});
  memory_ =
      options.allocate ? options.allocate(bytes) : AllocateOrdinary(bytes);
  if (memory_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", slot_count_, " batches of ", slot_bytes_, " bytes"));
  }
  const std::lock_guard lock(mutex_);
  slots_.resize(slot_count_);
  BeginBatches();
  return absl::OkStatus();
}

std::span<float> Loader::Images(int64_t batch) const {
  std::byte* const slot = memory_.get() + batch % slot_count_ * slot_bytes_;
  return {reinterpret_cast<float*>(slot),
          static_cast<size_t>(SizeOf(batch) * image_values_)};
}

std::span<int32_t> Loader::Labels(int64_t batch) const {
  std::byte* const images = memory_.get() + batch % slot_count_ * slot_bytes_;
  const int64_t bytes =
      max_batch_samples_ * image_values_ * static_cast<int64_t>(sizeof(float));
  return {reinterpret_cast<int32_t*>(images + RoundedUp(bytes)),
          batches_[batch].size()};
}

std::span<SampleLabel> Loader::Mixed(int64_t batch) const {
  auto* const labels = reinterpret_cast<std::byte*>(Labels(batch).data());
  return {
      reinterpret_cast<SampleLabel*>(
          labels + RoundedUp(max_batch_samples_ * int64_t{sizeof(int32_t)})),
      batches_[batch].size()};
}

void Loader::BeginBatches() {
  while (untaken_.begin == untaken_.end) {
    const int64_t batch = untaken_.batch + 1;
    if (batch == static_cast<int64_t>(batches_.size()) ||
        batch >= released_ + slot_count_) {
      return;
    }
    untaken_ = {batch, 0, SizeOf(batch)};
    slots_[batch % slot_count_] = {batch, untaken_.end, 0, absl::OkStatus()};
    work_.notify_all();
  }
}

Loader::Piece Loader::TakePiece(int64_t most) {
  Piece piece = untaken_;
  piece.end = std::min(piece.end, piece.begin + most);
  untaken_.begin = piece.end;
  BeginBatches();
  return piece;
}

bool Loader::IsReady(int64_t batch) const {
  const Slot& slot = slots_[batch % slot_count_];
  return slot.batch == batch && slot.remaining == 0;
}

void Loader::LoadPiece(const Piece& piece, int worker) {
  const std::span<float> images = Images(piece.batch);
  const std::span<int32_t> labels = Labels(piece.batch);
  const std::span<SampleLabel> mixed = Mixed(piece.batch);
  absl::Status status;
  int64_t i = piece.begin;
  for (; i < piece.end; ++i) {
    absl::StatusOr<SampleLabel> label;
    try {
      label = source_.Load({seed_, epoch_, batches_[piece.batch][i]}, worker,
                           images.subspan(i * image_values_, image_values_));
    } catch (const std::bad_alloc&) {
      label = absl::ResourceExhaustedError("no memory to load an image");
    }
    if (!label.ok()) {
      status = label.status();
      break;
    }
    labels[i] = label->label;
    mixed[i] = *label;
  }
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[piece.batch % slot_count_];
  slot.remaining -= piece.end - piece.begin;
  if (!status.ok() && (slot.status.ok() || i < slot.bad_sample)) {
    slot.status = std::move(status);
    slot.bad_sample = i;
  }
  if (slot.remaining == 0) ready_.notify_one();
}

void Loader::RunWorker(int worker) {
  while (true) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock,
                 [this] { return stop_ || untaken_.begin < untaken_.end; });
      if (stop_) return;
      piece = TakePiece(piece_size_);
    }
    LoadPiece(piece, worker);
  }
}

absl::StatusOr<LoadedBatch> Loader::Next() {
  LOCKSTEP_RETURN_IF_ERROR(failed_);
  const absl::Time start = absl::Now();
  const int64_t batch = next_++;
  Piece whole;
  {
    const std::lock_guard lock(mutex_);
    released_ = batch;
    BeginBatches();
    if (workers_.empty()) whole = TakePiece(SizeOf(batch));
  }
  if (workers_.empty()) LoadPiece(whole, /*worker=*/0);
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this, batch] { return IsReady(batch); });
  waited_ += absl::Now() - start;
  failed_ = std::move(slots_[batch % slot_count_].status);
  LOCKSTEP_RETURN_IF_ERROR(failed_);
  return LoadedBatch{Images(batch), Labels(batch), Mixed(batch)};
}

}  // namespace lockstep
