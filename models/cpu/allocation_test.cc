// A step takes no memory from the system after the first step of its batch
// size. Our code allocates by operator new, which then returns no page.
// oneDNN's products of matrices call malloc and free in every step. From the
// second step on, malloc has enough memory for them and asks the system for
// none.
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace {

constexpr size_t kPage = 4096;
std::atomic<int64_t> allocations = 0;

void Count(size_t bytes) {
  if (bytes >= kPage) ++allocations;
}

}  // namespace

// These operators replace the library's. AlignedBuffer uses the aligned one.
void* operator new(size_t bytes) {
  Count(bytes);
  if (void* const memory = malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  Count(bytes);
  if (void* const memory = memalign(static_cast<size_t>(alignment), bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  free(memory);
}

namespace lockstep {
namespace {

// Returns the bytes that malloc has taken from the system.
size_t SystemBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.arena + info.hblkhd;
}

class AllocationTest : public testing::TestWithParam<const char*> {};

TEST_P(AllocationTest, NoneAfterTheFirstStep) {
  SetComputeThreads(1);
  absl::StatusOr<Network> network = CreateNetwork(
      GetParam(), {.channels = 3, .height = 32, .width = 32, .classes = 4});
  ASSERT_THAT(network, IsOk());
  const auto model = CreateCpuReplica(*std::move(network));
  ASSERT_THAT(model, IsOk());
  constexpr int64_t kSamples = 6;
  std::vector<float> images(kSamples * (*model)->input_shape().size());
  std::iota(images.begin(), images.end(), 0.0f);
  for (float& pixel : images) pixel /= static_cast<float>(images.size());
  const std::vector<int32_t> labels(kSamples, 1);
  const std::vector<int64_t> samples(kSamples, 7);
  const Batch batch = {.images = images, .labels = labels, .samples = samples};
  std::vector<int64_t> counts;
  std::vector<size_t> system;
  for (int step = 0; step < 3; ++step) {
    const int64_t before = allocations;
    const auto metrics = (*model)->ForwardBackward(batch, 1, [](int) {});
    counts.push_back(allocations - before);
    system.push_back(SystemBytes());
    ASSERT_THAT(metrics, IsOk());
  }
  EXPECT_GT(counts[0], 0);  // The control: they are counted.
  EXPECT_EQ(counts[1], 0);
  EXPECT_EQ(counts[2], 0);
  EXPECT_EQ(system[2], system[1]);
}

INSTANTIATE_TEST_SUITE_P(Networks, AllocationTest,
                         testing::Values("lenet", "lenet_bn",
                                         "resnet18_d2l:width=32",
                                         "vit:patch=8,width=16,depth=2,heads=2,"
                                         "dropout=0.2,drop_path=0.3"));

}  // namespace
}  // namespace lockstep
