// A rank of Gloo's allreduce and its siblings over TCP on the loopback
// interface, for the command `allreduce`: allreduce_peer_gloo LISTENER STORE,
// where STORE is an empty folder in which the ranks meet.
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/all_reduce/turn.h"
#include "collectives/collective.h"
#include "collectives/groups/rank_environment.h"
#include "gloo/algorithm.h"
#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/allreduce_halving_doubling.h"
#include "gloo/alltoall.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/file_store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/types.h"

namespace lockstep::benchmarks {
namespace {

constexpr std::chrono::seconds kTimeout(120);

using ReduceFunction = void (*)(void*, const void*, const void*, size_t);

// Returns null for operations that Gloo does not support.
template <typename T>
ReduceFunction FunctionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return &gloo::sum<T>;
    case ReduceOp::kProduct:
      return &gloo::product<T>;
    case ReduceOp::kMin:
      return &gloo::min<T>;
    case ReduceOp::kMax:
      return &gloo::max<T>;
    default:
      return nullptr;
  }
}

template <typename T>
const gloo::ReductionFunction<T>* LegacyFunctionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return gloo::ReductionFunction<T>::product;
    case ReduceOp::kMin:
      return gloo::ReductionFunction<T>::min;
    case ReduceOp::kMax:
      return gloo::ReductionFunction<T>::max;
    default:
      return gloo::ReductionFunction<T>::sum;
  }
}

// Indices of PeerAlgorithms. At index 0, Gloo chooses its ring.
constexpr int kBcube = 1;
constexpr int kHalvingDoubling = 2;

// Connects all ranks, which meet in the store. Earlier versions of Gloo take
// the store by reference, and later versions take a shared pointer.
template <typename Context>
void Connect(Context& context, const std::string& store) {
  gloo::transport::tcp::attr where;
  where.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(where);
  auto meeting = std::make_shared<gloo::rendezvous::FileStore>(store);
  if constexpr (requires { context.connectFullMesh(*meeting, device); }) {
    context.connectFullMesh(*meeting, device);
  } else {
    context.connectFullMesh(meeting, device);
  }
}

class GlooGroup : public PeerCommunicator {
 public:
  GlooGroup(int rank, int world_size, const std::string& store)
      : context_(
            std::make_shared<gloo::rendezvous::Context>(rank, world_size)) {
    context_->setTimeout(kTimeout);
    Connect(*context_, store);
  }

  absl::Status SetAlgorithm(int algorithm) override {
    algorithm_ = algorithm;
    return absl::OkStatus();
  }

  int rank() const override { return context_->rank; }
  int world_size() const override { return context_->size; }

  absl::Status Run(const Collective& call) override {
    if (call.operation == Operation::kBarrier) {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
      return absl::OkStatus();
    }
    if (call.operation != Operation::kAllReduce) return Move(call);
    switch (call.input.type) {
      case DataType::kFloat64:
        return Reduce<double>(call);
      case DataType::kFloat32:
        return Reduce<float>(call);
      case DataType::kFloat16:
        return Reduce<gloo::float16>(call);
      case DataType::kInt32:
        return Reduce<int32_t>(call);
      case DataType::kInt64:
        return Reduce<int64_t>(call);
      case DataType::kUInt8:
        return Reduce<uint8_t>(call);
      case DataType::kBFloat16:
        break;
    }
    return Missing(call);
  }

 private:
  static absl::Status Missing(const Collective& call) {
    return absl::UnimplementedError(absl::StrCat("Gloo does not support ",
                                                 Name(call.op), " of ",
                                                 Name(call.input.type)));
  }

  // Moves bytes, because Gloo does not support all types. Reduce-scatter is not
  // measured: Gloo's is an algorithm of an older interface, and does not work
  // for every number of ranks.
  absl::Status Move(const Collective& call) {
    auto* const from =
        static_cast<uint8_t*>(const_cast<void*>(call.input.data));
    auto* const to = static_cast<uint8_t*>(call.output.data);
    const auto sent = static_cast<size_t>(call.input.size_bytes());
    const auto received = static_cast<size_t>(call.output.size_bytes());
    switch (call.operation) {
      case Operation::kAllGather: {
        gloo::AllgatherOptions options(context_);
        // A call in place has no input.
        if (from != to + sent * static_cast<size_t>(rank())) {
          options.setInput(from, sent);
        }
        options.setOutput(to, received);
        gloo::allgather(options);
        return absl::OkStatus();
      }
      case Operation::kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setOutput(to, received);
        options.setRoot(call.peer);
        gloo::broadcast(options);
        return absl::OkStatus();
      }
      case Operation::kAllToAll: {
        gloo::AlltoallOptions options(context_);
        options.setInput(from, sent);
        options.setOutput(to, received);
        gloo::alltoall(options);
        return absl::OkStatus();
      }
      default:
        return absl::UnimplementedError(absl::StrCat(
            "Gloo does not support ", CollectiveName(call.operation)));
    }
  }

  template <typename T>
  absl::Status Reduce(const Collective& call) {
    const ReduceFunction function = FunctionOf<T>(call.op);
    if (function == nullptr) return Missing(call);
    const ConstBuffer& input = call.input;
    const Buffer& output = call.output;
    const auto count = static_cast<size_t>(input.count);
    if (algorithm_ == kHalvingDoubling) return HalveAndDouble<T>(call);
    gloo::AllreduceOptions options(context_);
    if (algorithm_ == kBcube) {
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);
    }
    // A call in place has no input.
    if (input.data != output.data) {
      options.setInput(static_cast<T*>(const_cast<void*>(input.data)), count);
    }
    options.setOutput(static_cast<T*>(output.data), count);
    options.setReduceFunction(function);
    gloo::allreduce(options);
    return absl::OkStatus();
  }

  // Runs an algorithm of Gloo's older interface. An instance is bound to one
  // address and one number of elements. The address is that of
  // `reduce_buffer_`, so a call's time includes two extra copies.
  template <typename T>
  absl::Status HalveAndDouble(const Collective& call) {
    if (call.input.count > INT_MAX) {
      return absl::UnimplementedError("it supports only counts below 2^31");
    }
    const size_t bytes = static_cast<size_t>(call.input.size_bytes());
    const auto key = std::tuple(call.input.type, call.op, call.input.count);
    if (key != prepared_call_) {
      halving_doubling_.reset();
      reduce_buffer_.resize(bytes);
      halving_doubling_ = std::make_unique<gloo::AllreduceHalvingDoubling<T>>(
          context_,
          std::vector<T*>{reinterpret_cast<T*>(reduce_buffer_.data())},
          static_cast<int>(call.input.count), LegacyFunctionOf<T>(call.op));
      prepared_call_ = key;
    }
    std::memcpy(reduce_buffer_.data(), call.input.data, bytes);
    halving_doubling_->run();
    std::memcpy(call.output.data, reduce_buffer_.data(), bytes);
    return absl::OkStatus();
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
  int algorithm_ = 0;  // An index of PeerAlgorithms.
  std::vector<std::byte> reduce_buffer_;
  std::unique_ptr<gloo::Algorithm> halving_doubling_;
  std::tuple<DataType, ReduceOp, int64_t> prepared_call_ = {};
};

absl::Status Run(const std::string& listener, const std::string& store) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment own,
                            RequireRankEnvironment());
  // Gloo reports errors by exceptions, which become a status here.
  try {
    GlooGroup group(own.rank, own.world_size, store);
    return ServePeer(listener, group);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace
}  // namespace lockstep::benchmarks

int main(int argc, char** argv) {
  using namespace lockstep::benchmarks;
  return RankMain(argc, argv, 3, [argv] { return Run(argv[1], argv[2]); });
}
