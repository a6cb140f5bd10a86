// Checks that pinned batches equal batches of ordinary memory, and that they
// are freed with their loader.
#include "models/data/cuda/pinned_batches.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/loader.h"
#include "models/data/transform.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::LivePinnedBytes;

constexpr ImageShape kShape = {5, 7, 3};
constexpr int64_t kImages = 40;

MemoryDataset MakeDataset() {
  std::vector<uint8_t> images(kImages * kShape.size()), labels(kImages);
  for (size_t i = 0; i < images.size(); ++i) {
    images[i] = static_cast<uint8_t>(i * 31 + i / 97);
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<uint8_t>(i % 10);
  }
  return MemoryDataset(kShape, 10, std::move(images), std::move(labels));
}

const std::vector<std::vector<int64_t>>& Batches() {
  static const auto& batches = *new std::vector<std::vector<int64_t>>{
      {3, 1, 4, 1, 5}, {}, {9}, {2, 6, 5, 35}, {8, 9, 7, 9, 3}, {23, 39, 0}};
  return batches;
}

absl::StatusOr<std::unique_ptr<Loader>> MakeLoader(SampleSource& source,
                                                   int workers,
                                                   AllocateBatches allocate) {
  return Loader::Create(source, /*seed=*/1, /*epoch=*/2, Batches(),
                        {.workers = workers, .allocate = std::move(allocate)});
}

// A batch's values after a copy through a device, and its labels.
struct Copied {
  std::vector<float> images;
  std::vector<int32_t> labels;
  std::vector<SampleLabel> mixed;

  bool operator==(const Copied&) const = default;
};

// Copies the batch to a device and back.
Copied CopyThroughDevice(const LoadedBatch& batch) {
  Copied copied = {std::vector<float>(batch.images.size()),
                   {batch.labels.begin(), batch.labels.end()},
                   {batch.mixed.begin(), batch.mixed.end()}};
  const size_t bytes = batch.images.size_bytes();
  std::byte* device = nullptr;
  EXPECT_EQ(cudaMalloc(&device, bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device, batch.images.data(), bytes,
                            cudaMemcpyHostToDevice, nullptr),
            cudaSuccess);
  EXPECT_EQ(
      cudaMemcpy(copied.images.data(), device, bytes, cudaMemcpyDeviceToHost),
      cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  return copied;
}

// Returns all batches of a loader. pinned: receives the number of bytes of
// pinned memory while the loader lives.
std::vector<Copied> Load(int workers, AllocateBatches allocate,
                         int64_t& pinned) {
  const MemoryDataset dataset = MakeDataset();
  absl::StatusOr<Transform> transform =
      Transform::Create({.flip = 0.5, .mixup = 0.2}, dataset);
  EXPECT_THAT(transform, IsOk());
  ImageSource source(dataset, *std::move(transform), workers);
  const auto loader = MakeLoader(source, workers, std::move(allocate));
  EXPECT_THAT(loader, IsOk());
  std::vector<Copied> all;
  for (size_t i = 0; i < Batches().size(); ++i) {
    const absl::StatusOr<LoadedBatch> batch = (*loader)->Next();
    EXPECT_THAT(batch, IsOk());
    all.push_back(CopyThroughDevice(*batch));
  }
  pinned = LivePinnedBytes();
  return all;
}

TEST(PinnedBatchesTest, GivesTheSameBatchesAndFreesThem) {
  int64_t pinned = 0;
  const std::vector<Copied> want = Load(/*workers=*/0, nullptr, pinned);
  EXPECT_EQ(pinned, 0);
  EXPECT_FALSE(want[0] == want[4]);
  for (const int workers : {0, 1, 3}) {
    EXPECT_TRUE(Load(workers, PinnedBatches(), pinned) == want) << workers;
    // At least one slot, of five images.
    EXPECT_GE(pinned, 5 * kShape.size() * int64_t{sizeof(float)});
    EXPECT_EQ(LivePinnedBytes(), 0);
  }
}

// A copy that is enqueued later reads the memory's new content. From memory
// that is not pinned, the runtime would have copied at once.
TEST(PinnedBatchesTest, CopiesDoNotWaitForTheHost) {
  const std::shared_ptr<std::byte> memory = PinnedBatches()(1);
  ASSERT_NE(memory, nullptr);
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 1), cudaSuccess);
  const absl::StatusOr<Stream> stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  standin::SetSchedule({.order = standin::Order::kOldestStreamFirst});
  *memory = std::byte{1};
  EXPECT_EQ(cudaMemcpyAsync(device, memory.get(), 1, cudaMemcpyHostToDevice,
                            stream->get()),
            cudaSuccess);
  *memory = std::byte{2};
  EXPECT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
  std::byte copied = {};
  EXPECT_EQ(cudaMemcpy(&copied, device, 1, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(copied, std::byte{2});
  standin::SetSchedule({});
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

// While a stream is captured, the runtime refuses to allocate.
TEST(PinnedBatchesTest, RefusedMemoryIsAnErrorOfTheLoaderAlone) {
  const MemoryDataset dataset = MakeDataset();
  absl::StatusOr<Transform> transform = Transform::Create({}, dataset);
  ASSERT_THAT(transform, IsOk());
  ImageSource source(dataset, *std::move(transform), /*workers=*/0);
  const absl::StatusOr<Stream> stream = MakeStream();
  ASSERT_THAT(stream, IsOk());
  ASSERT_EQ(cudaStreamBeginCapture(stream->get(), cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_THAT(MakeLoader(source, /*workers=*/0, PinnedBatches()).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for ")));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  // The control: without the allocator, the runtime keeps the error.
  void* memory = nullptr;
  EXPECT_NE(cudaMallocHost(&memory, 1), cudaSuccess);
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream->get(), &graph), cudaSuccess);
  cudaGetLastError();
  EXPECT_EQ(LivePinnedBytes(), 0);
}

}  // namespace
}  // namespace lockstep
