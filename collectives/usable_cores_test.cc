#include "collectives/usable_cores.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(CoresOfQuotaTest, RoundsUpToWholeCores) {
  EXPECT_EQ(CoresOfQuota("200000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("150000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("50000 100000\n"), 1);
  EXPECT_EQ(CoresOfQuota("100001 100000"), 2);
}

TEST(CoresOfQuotaTest, IsZeroWithoutAQuota) {
  for (const char* text :
       {"", "max 100000\n", "7", "1 2 3", "-5 100000", "5 0"}) {
    EXPECT_EQ(CoresOfQuota(text), 0) << text;
  }
}

TEST(UsableCoresTest, IsAtLeastOne) { EXPECT_GE(UsableCores(), 1); }

}  // namespace
}  // namespace lockstep
