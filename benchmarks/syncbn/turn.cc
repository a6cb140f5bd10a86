// Bytes, and sums over ranks.
#include "benchmarks/syncbn/turn.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

// Writes and reads values, texts and lists, one after the other.
class Writer {
 public:
  template <typename T>
  void Add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void AddList(std::span<const T> values) {
    Add(static_cast<int64_t>(values.size()));
    for (const T& value : values) Add(value);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  bool Read(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return true;
  }
  // Of elements that have `element` bytes at least.
  bool ReadCount(int64_t& count, size_t element) {
    return Read(count) && count >= 0 &&
           count <= static_cast<int64_t>(bytes_.size() / element);
  }
  template <typename Values>
  bool ReadList(Values& values) {
    int64_t count = 0;
    if (!ReadCount(count, sizeof(values[0]))) return false;
    values.resize(static_cast<size_t>(count));
    for (auto& value : values) Read(value);
    return true;
  }
  bool done() const { return bytes_.empty(); }

 private:
  absl::string_view bytes_;
};

void AddCalls(const std::vector<CallTimes>& calls, Writer& writer) {
  writer.Add(static_cast<int64_t>(calls.size()));
  for (const CallTimes& call : calls) {
    writer.Add(call.begin);
    writer.Add(call.end);
    writer.Add(call.kernels);
    writer.AddList(std::span<const MessageTimes>(call.messages));
  }
}

bool ReadCalls(Reader& reader, std::vector<CallTimes>& calls) {
  int64_t count = 0;
  if (!reader.ReadCount(count, 2 * sizeof(double))) return false;
  calls.resize(static_cast<size_t>(count));
  for (CallTimes& call : calls) {
    if (!reader.Read(call.begin) || !reader.Read(call.end) ||
        !reader.Read(call.kernels) || !reader.ReadList(call.messages)) {
      return false;
    }
  }
  return true;
}

// One call from what each rank saw of it.
absl::StatusOr<TeamCall> CombineCall(std::span<const CallTimes* const> ranks) {
  TeamCall all;
  const size_t messages = ranks[0]->messages.size();
  std::vector<double> complete(messages, 0);  // When the last rank entered.
  for (const CallTimes* rank : ranks) {
    if (rank->messages.size() != messages) {
      return absl::DataLossError(absl::StrCat("one rank saw ", messages,
                                              " messages, another ",
                                              rank->messages.size()));
    }
    for (size_t i = 0; i < messages; ++i) {
      complete[i] = std::max(complete[i], rank->messages[i].entered);
    }
  }
  const double share = 1 / static_cast<double>(ranks.size());
  for (const CallTimes* rank : ranks) {
    const double seconds = rank->end - rank->begin;
    double other = seconds;
    all.seconds = std::max(all.seconds, seconds);
    for (size_t i = 0; i < messages; ++i) {
      const MessageTimes& message = rank->messages[i];
      all.wait += share * (complete[i] - message.entered);
      all.communication += share * (message.left - complete[i]);
      other -= message.left - message.entered;
    }
    for (size_t i = 0; i < all.kernels.size(); ++i) {
      all.kernels[i] += share * rank->kernels[i];
      other -= rank->kernels[i];
    }
    all.other += share * other;
  }
  all.messages = static_cast<int64_t>(messages);
  for (const MessageTimes& message : ranks[0]->messages) {
    all.message_bytes += message.bytes;
  }
  return all;
}

absl::StatusOr<std::vector<TeamCall>> CombineCalls(
    std::span<const RankTurn> turns,
    std::vector<CallTimes> RankTurn::*direction) {
  std::vector<TeamCall> calls;
  const size_t count = (turns[0].*direction).size();
  for (const RankTurn& turn : turns) {
    if ((turn.*direction).size() == count) continue;
    return absl::DataLossError(absl::StrCat("one rank timed ", count,
                                            " calls, another ",
                                            (turn.*direction).size()));
  }
  for (size_t i = 0; i < count; ++i) {
    std::vector<const CallTimes*> ranks;
    for (const RankTurn& turn : turns) {
      ranks.push_back(&(turn.*direction)[i]);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const TeamCall call, CombineCall(ranks));
    calls.push_back(call);
  }
  return calls;
}

}  // namespace

const char* Name(TimedKernel kernel) {
  switch (kernel) {
    case TimedKernel::kMoments:
      return "moments";
    case TimedKernel::kMerge:
      return "merge";
    case TimedKernel::kNormalize:
      return "normalize";
    case TimedKernel::kBackwardReduce:
      return "backward reduce";
    case TimedKernel::kBackwardInput:
      break;
  }
  return "backward input";
}

RankTurn Missing(const absl::Status& why) {
  RankTurn turn;
  turn.missing = std::string(why.message());
  return turn;
}

absl::StatusOr<RankTurn> OrMissing(absl::StatusOr<RankTurn> turn) {
  if (turn.ok() || !absl::IsUnimplemented(turn.status())) return turn;
  return Missing(turn.status());
}

std::string Serialize(const SyncBnRequest& request) {
  Writer writer;
  writer.Add(request);
  return writer.Take();
}

absl::StatusOr<SyncBnRequest> ParseSyncBnRequest(absl::string_view bytes) {
  SyncBnRequest request;
  Reader reader(bytes);
  if (reader.Read(request) && reader.done()) return request;
  return absl::DataLossError("a request of another size than expected");
}

std::string Serialize(const RankTurn& turn) {
  Writer writer;
  AddCalls(turn.forward, writer);
  AddCalls(turn.backward, writer);
  writer.Add(turn.wrong);
  writer.AddList(std::span<const char>(turn.note));
  writer.AddList(std::span<const char>(turn.gpu));
  writer.Add(turn.shared_gpu);
  writer.AddList(std::span<const char>(turn.missing));
  return writer.Take();
}

absl::StatusOr<RankTurn> ParseRankTurn(absl::string_view bytes) {
  RankTurn turn;
  Reader reader(bytes);
  if (ReadCalls(reader, turn.forward) && ReadCalls(reader, turn.backward) &&
      reader.Read(turn.wrong) && reader.ReadList(turn.note) &&
      reader.ReadList(turn.gpu) && reader.Read(turn.shared_gpu) &&
      reader.ReadList(turn.missing) && reader.done()) {
    return turn;
  }
  return absl::DataLossError("a rank's answer is not whole");
}

double TeamCall::Kernels() const {
  return std::accumulate(kernels.begin(), kernels.end(), 0.0);
}

absl::StatusOr<TeamTurn> CombineTurns(std::span<const RankTurn> turns) {
  TeamTurn all;
  for (const RankTurn& turn : turns) {
    all.wrong += turn.wrong;
    if (all.note.empty()) all.note = turn.note;
    if (all.gpu.empty()) all.gpu = turn.gpu;
    all.shared_gpu = all.shared_gpu || turn.shared_gpu != 0;
    if (all.missing.empty()) all.missing = turn.missing;
  }
  if (!all.missing.empty()) return all;
  LOCKSTEP_ASSIGN_OR_RETURN(all.forward,
                            CombineCalls(turns, &RankTurn::forward));
  LOCKSTEP_ASSIGN_OR_RETURN(all.backward,
                            CombineCalls(turns, &RankTurn::backward));
  return all;
}

}  // namespace lockstep::benchmarks
