// Tests of reading logs whose lines have the format of NCCL's sources.
#include "benchmarks/all_reduce/nccl_log.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// The log of two ranks on one node with NCCL 2.28.9.
constexpr char kLog[] =
    R"(node7:412:412 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0,lo
node7:412:412 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>
node7:412:412 [0] NCCL INFO cudaDriverVersion 13000
node7:412:412 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
node7:412:430 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
node7:412:430 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>
node7:412:430 [0] NCCL INFO Using network Socket
node7:412:430 [0] NCCL INFO ncclCommInitRankConfig comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 4f000 commId 0x12 - Init START
node7:412:430 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
node7:412:430 [0] NCCL INFO Channel 00/24 : 0 1
node7:412:430 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
node7:412:430 [0] NCCL INFO P2P Chunksize set to 524288
node7:412:430 [0] NCCL INFO Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1
node7:412:430 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
node7:412:430 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node7:413:431 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct
node7:413:431 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0/GDRDMA
node7:413:431 [1] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
)";

TEST(NcclLogTest, SaysWhatACommunicatorIsLike) {
  NcclFacts facts;
  ReadNcclFacts(kLog, facts);
  EXPECT_EQ(facts.version, "2.28.9+cuda13.0");
  EXPECT_EQ(facts.network, "Socket");
  EXPECT_EQ(facts.channels, "24 coll, 16 nvls, 32 p2p");
  EXPECT_EQ(facts.p2p, "all pairs");
  EXPECT_EQ(facts.nvls, "available");
  EXPECT_THAT(facts.transports,
              ElementsAre("NET/Socket/GDRDMA", "P2P/CUMEM", "SHM/direct"));
  EXPECT_THAT(facts.environment,
              ElementsAre(Pair("NCCL_IB_DISABLE", "1"),
                          Pair("NCCL_SOCKET_IFNAME", "eth0,lo")));
}

TEST(NcclLogTest, HearsOfWhatIsLacking) {
  NcclFacts facts;
  ReadNcclFacts(
      "h:1:1 [0] NCCL INFO NVLS multicast support is not available on dev 0\n"
      "h:1:1 [0] NCCL INFO Check P2P Type isAllDirectP2p 0 directMode 0 "
      "isAllCudaP2p 0\n"
      "h:1:1 [0] NCCL INFO Using network IB\n"
      "h:1:1 [0] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, "
      "2 p2p channels per peer\n",
      facts);
  EXPECT_EQ(facts.nvls, "not available");
  EXPECT_EQ(facts.p2p, "not all");
  EXPECT_EQ(facts.network, "IB");
  EXPECT_EQ(facts.channels, "2 coll, 0 nvls, 2 p2p");
}

TEST(NcclLogTest, SaysHowACallWent) {
  const auto line = [](absl::string_view what) {
    return absl::StrCat("node7:412:412 [0] NCCL INFO ", what, "\n");
  };
  const std::string ring = line(
      "AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE "
      "channel{Lo..Hi}={0..23}");
  const std::pair<std::string, NcclChoice> cases[] = {
      {ring, {"RING", "SIMPLE", "24"}},
      // The last one counts.
      {ring + line("AllReduce: 8 Bytes -> Algo NVLS_TREE proto LL128 "
                   "channel{Lo..Hi}={3..3}"),
       {"NVLS_TREE", "LL128", "1"}},
      {ring + line("AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R "
                   "nchannels 2 nthreads 512 nWorks 1"),
       {"AllReduce_AGxLL_R", kUnknown, "2"}},
      // NCCL 2.22.
      {line("8 Bytes -> Algo 1 proto 0 time 12.5"), {"1", "0", kUnknown}}};
  for (const auto& [log, choice] : cases) {
    EXPECT_EQ(ReadNcclChoice(log), choice) << log;
  }
}

// The control: what the log does not state is unknown, and not guessed.
TEST(NcclLogTest, KnowsNothingOfWhatIsNotSaid) {
  for (const char* log :
       {"", "\n\n", "NCCL INFO", "node7:412:412 [0] NCCL INFO",
        "node7:412:412 [0] NCCL INFO Connected all trees\n",
        "node7:412:412 [0] NCCL WARN NCCL version mismatch with remote peer\n",
        "node7:412:412 [0] NCCL INFO Using network \n",
        "node7:412:412 [0] NCCL INFO Channel 00/24 : 0 1\n",
        "node7:412:412 [0] NCCL INFO AllReduce: 8 Bytes -> \n",
        "node7:412:412 [0] NCCL INFO LD_PRELOAD set by environment to x\n",
        "Using network Socket, 24 coll channels, via P2P/CUMEM\n"}) {
    NcclFacts facts;
    ReadNcclFacts(log, facts);
    EXPECT_EQ(facts, NcclFacts()) << log;
    EXPECT_EQ(ReadNcclChoice(log), NcclChoice()) << log;
  }
  EXPECT_EQ(NcclFacts().version, "unknown");
  EXPECT_EQ(NcclChoice().algorithm, "unknown");
  EXPECT_THAT(NcclFacts().transports, IsEmpty());
}

}  // namespace
}  // namespace lockstep::benchmarks
