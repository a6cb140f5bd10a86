#include "standin/cudnn/plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "standin/cudnn/computation.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"
#include "standin/elements.h"
#include "standin/memory.h"

namespace lockstep::standin::cudnn {
namespace {

using Kind = Operation::Kind;

// Returns the tensors that an operation reads and writes.
std::vector<const GraphTensor*> TensorsOf(const Operation& op) {
  std::vector<const GraphTensor*> all = op.operands();
  const std::vector<const GraphTensor*> results = op.results();
  all.insert(all.end(), results.begin(), results.end());
  return all;
}

// Checks one result against the numbers of the tensors that the operation and
// those before it read, and adds it to those that are written.
absl::Status CheckResult(const GraphTensor& t, const std::set<int64_t>& read,
                         std::set<int64_t>& written) {
  if (t.is_by_value) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an operation writes tensor ", t.uid, ", which is passed by value"));
  }
  if (!written.insert(t.uid).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("two operations write tensor ", t.uid));
  }
  return read.contains(t.uid)
             ? absl::InvalidArgumentError(absl::StrCat(
                   "tensor ", t.uid, " is read before it is written"))
             : absl::OkStatus();
}

bool HasAttentionEngine(const Operation& op) {
  return op.x.is_16_bit() && op.x.dims[3] % 8 == 0 && op.x.dims[3] <= 128 &&
         std::ranges::all_of(std::vector{&op.x, &op.w, &op.v, &op.y},
                             [&](const GraphTensor* t) {
                               return t->type == op.x.type &&
                                      t->strides[3] == 1;
                             });
}

bool IsFactor(const GraphTensor& t) { return t.is_16_bit() || t.is_virtual; }

// Checks one tensor's memory.
absl::Status CheckTensor(const GraphTensor& t, const GraphMemory& memory) {
  const auto found = memory.tensors.find(t.uid);
  const auto name = [&] { return absl::StrCat("tensor ", t.uid); };
  if (found == memory.tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " is not in the variant pack"));
  }
  const bool on_device =
      IsDeviceRange(found->second, static_cast<size_t>(t.bytes()));
  if (t.is_by_value) {
    return found->second != nullptr && !on_device
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat(name(), " does not lie in host memory"));
  }
  if (!on_device) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), " does not lie in ", t.bytes(), " bytes of device memory"));
  }
  if (reinterpret_cast<uintptr_t>(found->second) %
          static_cast<uintptr_t>(t.alignment) !=
      0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " is not aligned to ", t.alignment, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGraph(std::span<const Operation> graph) {
  std::map<int64_t, GraphTensor> tensors;
  std::set<int64_t> read, written;
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : op.operands()) {
      if (t->is_virtual && !written.contains(t->uid)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "no earlier operation writes the virtual tensor ", t->uid));
      }
      if (!written.contains(t->uid)) read.insert(t->uid);
    }
    for (const GraphTensor* const t : TensorsOf(op)) {
      if (tensors.try_emplace(t->uid, *t).first->second != *t) {
        return absl::InvalidArgumentError(
            absl::StrCat("two tensors have the number ", t->uid));
      }
    }
    for (const GraphTensor* const t : op.results()) {
      if (absl::Status status = CheckResult(*t, read, written); !status.ok()) {
        return status;
      }
    }
  }
  return graph.back().results().front()->is_virtual
             ? absl::InvalidArgumentError("the graph's result is virtual")
             : absl::OkStatus();
}

bool HasEngine(std::span<const Operation> graph) {
  const Operation& first = graph.front();
  if (first.kind == Kind::kAttention) {
    return graph.size() == 1 && HasAttentionEngine(first);
  }
  const bool is_convolution =
      std::ranges::all_of(graph, [](const Operation& op) {
        return op.is_convolution() || op.kind == Kind::kAdd ||
               op.kind == Kind::kRelu;
      });
  if (is_convolution) {
    return first.kind != Kind::kWeightGradient || first.w.type == first.x.type;
  }
  return std::ranges::any_of(
             graph,
             [](const Operation& op) { return op.kind == Kind::kMatmul; }) &&
         std::ranges::all_of(graph, [](const Operation& op) {
           return !op.is_convolution() && op.kind != Kind::kAttention &&
                  (op.kind != Kind::kMatmul ||
                   (IsFactor(op.x) && IsFactor(op.w)));
         });
}

int64_t WorkspaceBytes(std::span<const Operation> graph) {
  constexpr int64_t kBytes = 256, kTile = 64;
  const auto& [n, c, h, w] = graph.front().y.dims;
  int64_t bytes = kBytes * (n + c + h + w);
  // Keeps the largest value between two products in 16 bits, in tiles, as cuDNN
  // does in attention's backward pass.
  const auto tiles = [](int64_t size) {
    return (size + kTile - 1) / kTile * kTile;
  };
  for (const Operation& op : graph) {
    if (op.kind != Operation::Kind::kMatmul || !op.y.is_virtual) continue;
    const auto& [batch, heads, rows, columns] = op.y.dims;
    bytes = std::max(bytes, 2 * batch * heads * tiles(rows) * tiles(columns));
  }
  return bytes;
}

absl::Status CheckMemory(std::span<const Operation> graph,
                         const GraphMemory& memory) {
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : TensorsOf(op)) {
      if (t->is_virtual) continue;
      if (absl::Status status = CheckTensor(*t, memory); !status.ok()) {
        return status;
      }
    }
  }
  const int64_t needed = WorkspaceBytes(graph);
  return IsDeviceRange(memory.workspace, static_cast<size_t>(needed))
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("the workspace does not lie in ", needed,
                                " bytes of device memory"));
}

void ReadScalars(std::span<const Operation> graph, GraphMemory& memory) {
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : op.operands()) {
      if (!t->is_by_value) continue;
      memory.scalars[t->uid] =
          ReadElement(TypeOf(t->type), memory.tensors.at(t->uid), 0);
    }
  }
}

void Run(std::span<const Operation> graph, const GraphMemory& memory) {
  const auto overwrite_workspace = [&] {
    std::memset(memory.workspace, 0xff,
                static_cast<size_t>(WorkspaceBytes(graph)));
  };
  overwrite_workspace();
  // A GPU may write any result before it reads any operand, so an operand that
  // shares memory with a result is lost.
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : op.results()) {
      if (t->is_virtual) continue;
      Store(*t, Values(static_cast<size_t>(t->count()), NAN),
            memory.tensors.at(t->uid));
    }
  }
  ValuesOfTensors values;
  for (const auto& [uid, scalar] : memory.scalars) values[uid] = {scalar};
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : op.operands()) {
      if (t->is_virtual || values.contains(t->uid)) continue;
      values[t->uid] = Load(*t, memory.tensors.at(t->uid));
    }
    Compute(op, values);
    for (const GraphTensor* const t : op.results()) {
      if (t->is_virtual) {
        RoundTo(TypeOf(t->type), values[t->uid]);
      } else {
        Store(*t, values[t->uid], memory.tensors.at(t->uid));
        values[t->uid] = Load(*t, memory.tensors.at(t->uid));
      }
    }
  }
  overwrite_workspace();
}

}  // namespace lockstep::standin::cudnn
