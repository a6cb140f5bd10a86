// Tests capture and replay of graphs: what is recorded, in which orders it may
// run, and what CUDA refuses while a stream is captured.
#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <thread>

#include "gtest/gtest.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::DroppedWaits;
using standin::Order;
using standin::SetSchedule;

// Expects cudaSuccess.
void Ok(cudaError_t error, const char* file = __builtin_FILE(),
        int line = __builtin_LINE()) {
  if (error != cudaSuccess) {
    ADD_FAILURE_AT(file, line) << cudaGetErrorName(error);
  }
}

__global__ void Add(int* sum, const int* term) { *sum = 10 * *sum + *term; }

// Two streams, two events and four ints in device memory: 0 0 3 4.
class GraphTest : public testing::Test {
 protected:
  void SetUp() override {
    Ok(cudaStreamCreateWithFlags(&older_, cudaStreamNonBlocking));
    Ok(cudaStreamCreateWithFlags(&newer_, cudaStreamNonBlocking));
    Ok(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
    Ok(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
    Ok(cudaMalloc(&data_, 4 * sizeof(int)));
    Reset();
  }
  void TearDown() override {
    Ok(cudaDeviceSynchronize());
    if (graph_ != nullptr) Ok(cudaGraphDestroy(graph_));
    if (executable_ != nullptr) Ok(cudaGraphExecDestroy(executable_));
    Ok(cudaFree(data_));
    for (const cudaEvent_t event : {fork_, join_}) Ok(cudaEventDestroy(event));
    for (const cudaStream_t each : {older_, newer_}) {
      Ok(cudaStreamDestroy(each));
    }
    SetSchedule({});
  }

  void Reset() {
    const int values[] = {0, 0, 3, 4};
    Ok(cudaMemcpy(data_, values, sizeof(values), cudaMemcpyHostToDevice));
  }
  int Read(int index) {
    int value = -1;
    Ok(cudaMemcpy(&value, data_ + index, sizeof(int), cudaMemcpyDeviceToHost));
    return value;
  }
  // Puts data[to] = 10 data[to] + data[from] on the stream.
  void PutAdd(int to, int from, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 1;
    config.stream = stream;
    Ok(cudaLaunchKernelEx(&config, Add, data_ + to, data_ + from));
  }
  void PutCopy(int to, int from, cudaStream_t stream) {
    Ok(cudaMemcpyAsync(data_ + to, data_ + from, sizeof(int),
                       cudaMemcpyDeviceToDevice, stream));
  }
  void Wait(cudaStream_t stream, cudaEvent_t event, cudaStream_t on) {
    Ok(cudaEventRecord(event, on));
    Ok(cudaStreamWaitEvent(stream, event));
  }
  void Begin(cudaStream_t stream) {
    Ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  }
  void End(cudaStream_t stream, size_t nodes) {
    Ok(cudaStreamEndCapture(stream, &graph_));
    size_t found = 0;
    Ok(cudaGraphGetNodes(graph_, nullptr, &found));
    EXPECT_EQ(found, nodes);
    Ok(cudaGraphInstantiate(&executable_, graph_));
  }

  // Captures a graph in which `origin` writes a, and `other` copies a to b. If
  // `forks_late`, the fork's event follows the write, so that the copy does
  // too. Otherwise the fork's event precedes the write, and nothing orders the
  // copy.
  void CaptureCopy(cudaStream_t origin, cudaStream_t other, bool forks_late) {
    Begin(origin);
    if (!forks_late) Wait(other, fork_, origin);
    PutCopy(0, 2, origin);
    if (forks_late) Wait(other, fork_, origin);
    PutCopy(1, 0, other);
    Wait(origin, join_, other);
    End(origin, 2);
  }
  // Replays the graph and returns b.
  int Replayed() {
    Reset();
    Ok(cudaGraphLaunch(executable_, older_));
    Ok(cudaStreamSynchronize(older_));
    return Read(1);
  }

  cudaStream_t older_ = nullptr;
  cudaStream_t newer_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  cudaEvent_t join_ = nullptr;
  int* data_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_F(GraphTest, RunsAtEachLaunchAndNotBefore) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusInvalidated;
  Begin(older_);
  PutAdd(0, 2, older_);
  PutAdd(0, 3, older_);
  Ok(cudaStreamIsCapturing(older_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  End(older_, 2);
  Ok(cudaStreamIsCapturing(older_, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(Read(0), 0);
  Ok(cudaGraphDestroy(graph_));  // The executable graph keeps its nodes.
  graph_ = nullptr;
  for (const Order order :
       {Order::kAtOnce, Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    SetSchedule({.order = order});
    Reset();
    PutAdd(0, 3, newer_);  // Runs before the launches,
    Ok(cudaGraphLaunch(executable_, newer_));
    Ok(cudaGraphLaunch(executable_, newer_));
    PutAdd(0, 3, newer_);  // and after them.
    Ok(cudaStreamSynchronize(newer_));
    EXPECT_EQ(Read(0), 434344);
  }
}

TEST_F(GraphTest, EventsOrderWhatIsReplayed) {
  for (const bool from_older : {true, false}) {
    const cudaStream_t origin = from_older ? older_ : newer_;
    CaptureCopy(origin, from_older ? newer_ : older_, /*forks_late=*/true);
    for (const Order order : {Order::kAtOnce, Order::kOldestStreamFirst,
                              Order::kNewestStreamFirst}) {
      SetSchedule({.order = order});
      EXPECT_EQ(Replayed(), 3);
    }
    SetSchedule({.order = from_older ? Order::kNewestStreamFirst
                                     : Order::kOldestStreamFirst,
                 .dropped_waits = from_older ? DroppedWaits::kOfOlderStreams
                                             : DroppedWaits::kOfNewerStreams});
    EXPECT_EQ(Replayed(), 3);  // The fork's wait is kept.
    SetSchedule({.order = from_older ? Order::kNewestStreamFirst
                                     : Order::kOldestStreamFirst,
                 .dropped_waits = from_older ? DroppedWaits::kOfNewerStreams
                                             : DroppedWaits::kOfOlderStreams});
    EXPECT_EQ(Replayed(), 0);
    SetSchedule({});
    Ok(cudaGraphDestroy(graph_));
    Ok(cudaGraphExecDestroy(executable_));
    executable_ = nullptr;
    graph_ = nullptr;
  }
}

TEST_F(GraphTest, AMissingEventShows) {
  CaptureCopy(older_, newer_, /*forks_late=*/false);
  EXPECT_EQ(Replayed(), 3);  // Runs in the order of recording.
  SetSchedule({.order = Order::kNewestStreamFirst});
  EXPECT_EQ(Replayed(), 0);
}

// With the flag, a stream of higher priority goes first among nodes that may
// run.
TEST_F(GraphTest, NodesHaveThePriorityOfTheirStream) {
  cudaStream_t urgent = nullptr;
  Ok(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, -5));
  CaptureCopy(older_, urgent, /*forks_late=*/false);
  EXPECT_EQ(Replayed(), 3);
  Ok(cudaGraphExecDestroy(executable_));
  Ok(cudaGraphInstantiate(&executable_, graph_,
                          cudaGraphInstantiateFlagUseNodePriority));
  EXPECT_EQ(Replayed(), 0);
  Ok(cudaStreamDestroy(urgent));
}

// The second launch waits for the first, though its stream would run first.
TEST_F(GraphTest, LaunchesOfOneGraphDoNotOverlap) {
  Begin(older_);
  PutAdd(0, 2, older_);
  End(older_, 1);
  SetSchedule({.order = Order::kNewestStreamFirst});
  PutCopy(0, 3, older_);
  Ok(cudaGraphLaunch(executable_, older_));
  Ok(cudaGraphLaunch(executable_, newer_));
  Ok(cudaDeviceSynchronize());
  EXPECT_EQ(Read(0), 433);
}

// Another stream can wait for a node of the next replay, and the host too.
TEST_F(GraphTest, EachReplayRecordsAnExternalEvent) {
  EXPECT_EQ(cudaEventRecordWithFlags(join_, older_, cudaEventRecordExternal),
            cudaErrorInvalidValue);  // Without a capture.
  Begin(older_);
  PutAdd(0, 2, older_);
  Ok(cudaEventRecordWithFlags(join_, older_, cudaEventRecordExternal));
  End(older_, 2);
  SetSchedule({.order = Order::kNewestStreamFirst});
  for (int i = 0; i < 2; ++i) {
    Reset();
    Ok(cudaGraphLaunch(executable_, older_));
    Ok(cudaStreamWaitEvent(newer_, join_));
    PutCopy(1, 0, newer_);
    Ok(cudaEventSynchronize(join_));
    Ok(cudaStreamSynchronize(newer_));
    EXPECT_EQ(Read(1), 3);
  }
}

TEST_F(GraphTest, RefusesAndInvalidates) {
  cudaEvent_t outside = nullptr;
  cudaStream_t other = nullptr;
  std::byte host[4] = {};
  void* memory = nullptr;
  Ok(cudaEventCreate(&outside));
  Ok(cudaEventRecord(outside, newer_));
  Ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const struct {
    const char* name;
    std::function<cudaError_t()> call;
    cudaError_t error;
  } kCases[] = {
      {"asks the stream", [&] { return cudaStreamQuery(older_); },
       cudaErrorStreamCaptureUnsupported},
      {"waits for the stream", [&] { return cudaStreamSynchronize(older_); },
       cudaErrorStreamCaptureUnsupported},
      {"waits for a forked stream",
       [&] { return cudaStreamSynchronize(newer_); },
       cudaErrorStreamCaptureUnsupported},
      {"waits for all", [] { return cudaDeviceSynchronize(); },
       cudaErrorStreamCaptureUnsupported},
      {"asks another stream", [&] { return cudaStreamQuery(other); },
       cudaErrorStreamCaptureUnsupported},
      {"asks an event of before", [&] { return cudaEventQuery(outside); },
       cudaErrorStreamCaptureUnsupported},
      {"asks an event of the capture", [&] { return cudaEventQuery(fork_); },
       cudaErrorCapturedEvent},
      {"waits for one", [&] { return cudaEventSynchronize(fork_); },
       cudaErrorCapturedEvent},
      {"needs work of before",
       [&] { return cudaStreamWaitEvent(newer_, outside); },
       cudaErrorStreamCaptureIsolation},
      {"is needed by the default stream",
       [&] { return cudaStreamWaitEvent(nullptr, fork_); },
       cudaErrorStreamCaptureImplicit},
      {"merges two captures",
       [&] {
         Ok(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
         const cudaError_t error = cudaStreamWaitEvent(other, fork_);
         cudaGraph_t graph = nullptr;
         EXPECT_EQ(cudaStreamEndCapture(other, &graph),
                   cudaErrorStreamCaptureInvalidated);
         return error;
       },
       cudaErrorStreamCaptureMerge},
      {"begins again",
       [&] {
         return cudaStreamBeginCapture(older_, cudaStreamCaptureModeGlobal);
       },
       cudaErrorIllegalState},
      {"ends elsewhere",
       [&] {
         cudaGraph_t graph = nullptr;
         return cudaStreamEndCapture(newer_, &graph);
       },
       cudaErrorStreamCaptureUnmatched},
      {"ends in another thread",
       [&] {
         cudaError_t error = cudaSuccess;
         std::thread([&] {
           cudaGraph_t graph = nullptr;
           error = cudaStreamEndCapture(older_, &graph);
         }).join();
         return error;
       },
       cudaErrorStreamCaptureWrongThread},
      {"allocates", [&] { return cudaMalloc(&memory, 1); },
       cudaErrorStreamCaptureUnsupported},
      {"frees", [&] { return cudaFree(data_); },
       cudaErrorStreamCaptureUnsupported},
      {"copies pageable memory",
       [&] {
         return cudaMemcpyAsync(data_, host, 4, cudaMemcpyHostToDevice, older_);
       },
       cudaErrorStreamCaptureUnsupported},
      {"copies at once",
       [&] { return cudaMemcpy(host, data_, 4, cudaMemcpyDeviceToHost); },
       cudaErrorStreamCaptureUnsupported},
  };
  for (const auto& each : kCases) {
    SCOPED_TRACE(each.name);
    Begin(older_);
    PutCopy(0, 2, older_);
    Wait(newer_, fork_, older_);
    EXPECT_EQ(each.call(), each.error);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    Ok(cudaStreamIsCapturing(older_, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(cudaMemsetAsync(data_, 0, 1, newer_),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaEventRecord(join_, newer_),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaStreamEndCapture(older_, &graph_),
              cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph_, nullptr);
    Ok(cudaStreamQuery(newer_));
  }
  Ok(cudaEventDestroy(outside));
  Ok(cudaStreamDestroy(other));
}

TEST_F(GraphTest, RefusesTheDefaultStreamAndUnjoinedWork) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(older_, &graph_), cudaErrorIllegalState);
  Begin(older_);
  Wait(newer_, fork_, older_);
  PutCopy(0, 2, newer_);
  EXPECT_EQ(cudaStreamEndCapture(older_, &graph_),
            cudaErrorStreamCaptureUnjoined);
  Ok(cudaStreamQuery(newer_));
  EXPECT_EQ(Read(0), 0);
  // Events of a capture that has ended are not usable.
  EXPECT_EQ(cudaEventQuery(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(newer_, fork_), cudaErrorCapturedEvent);
  Ok(cudaEventRecord(fork_, newer_));
  Ok(cudaEventQuery(fork_));
}

// The default stream waits for blocking streams, so it must not be used while
// one of them is captured.
TEST_F(GraphTest, TheDefaultStreamIsAtOddsWithBlockingStreamsAlone) {
  Begin(older_);
  Ok(cudaMemsetAsync(data_, 0, 1));
  End(older_, 0);
  cudaStream_t blocking = nullptr;
  Ok(cudaStreamCreateWithFlags(&blocking, 0));
  Begin(blocking);
  EXPECT_EQ(cudaMemsetAsync(data_, 0, 1), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph),
            cudaErrorStreamCaptureInvalidated);
  Ok(cudaStreamDestroy(blocking));
}

// A query by another thread, such as a watchdog, invalidates a capture of mode
// global, unless that thread has set another mode for itself.
TEST_F(GraphTest, OtherThreadsAskAsTheModesAllow) {
  Ok(cudaEventRecord(join_, newer_));
  const auto ask = [&](cudaStreamCaptureMode mode) {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      Ok(cudaThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
      error = cudaEventQuery(join_);
    }).join();
    return error;
  };
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    const bool global = mode == cudaStreamCaptureModeGlobal;
    Ok(cudaStreamBeginCapture(older_, mode));
    Ok(ask(cudaStreamCaptureModeThreadLocal));
    Ok(ask(cudaStreamCaptureModeRelaxed));
    EXPECT_EQ(ask(cudaStreamCaptureModeGlobal),
              global ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(older_, &graph_),
              global ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    if (graph_ != nullptr) Ok(cudaGraphDestroy(graph_));
    graph_ = nullptr;
  }
}

}  // namespace
}  // namespace lockstep
