#include "models/cpu/primitive.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/shape.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

using dnnl::memory;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CatchOnednnTest, TurnsAnErrorIntoAStatusThatNamesTheLayer) {
  EXPECT_THAT(CatchOnednn("conv7", [] {}), IsOk());
  EXPECT_THAT(
      CatchOnednn("conv7",
                  [] { throw dnnl::error(dnnl_unimplemented, "no such"); }),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("conv7: oneDNN: no such")));
  // A real one: there is no engine of this number.
  EXPECT_THAT(
      CatchOnednn("engine", [] { dnnl::engine(dnnl::engine::kind::cpu, 99); }),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("engine: oneDNN:")));
}

TEST(AlignedSizeTest, RoundsUpToCacheLines) {
  for (const auto& [floats, want] :
       {std::pair{0, 0}, {1, 16}, {15, 16}, {16, 16}, {17, 32}}) {
    EXPECT_EQ(AlignedSize(floats), want);
    EXPECT_EQ(AlignedSize(ChannelsLast({.n = 1, .c = floats})), want);
  }
  EXPECT_EQ(AlignedSize(memory::desc()), 0);
}

TEST(FormatConversionTest, TransposesAndCopiesNothingIfEqual) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto type = memory::data_type::f32;
  const memory::desc rows({2, 3}, type, memory::format_tag::ab);
  const memory::desc columns({2, 3}, type, memory::format_tag::ba);
  FormatConversion transpose(engine, rows, columns);
  ASSERT_FALSE(transpose.is_identity());
  const std::vector<float> from = {1, 2, 3, 4, 5, 6};
  std::vector<float> to(6);
  transpose.Run(stream, from.data(), to.data());
  EXPECT_THAT(to, ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_TRUE(FormatConversion(engine, rows, rows).is_identity());
}

TEST(AccumulationTest, AddsAndLeavesWhatItAdds) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  for (const int64_t size : {1, 2, 15, 16, 17, 1000}) {
    std::vector<float> from(size), to(size + 1, 0.5f), want(size + 1, 0.5f);
    for (int64_t i = 0; i < size; ++i) {
      from[i] = static_cast<float>(i % 37);
      want[i] += from[i];
    }
    const std::vector<float> before = from;
    Accumulation(engine, size).Run(stream, from.data(), to.data());
    EXPECT_EQ(to, want);
    EXPECT_EQ(from, before);
  }
}

}  // namespace
}  // namespace lockstep
