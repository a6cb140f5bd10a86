#include "standin/cudnn/operations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/elements.h"
#include "standin/memory.h"

namespace lockstep::standin::cudnn {
namespace {

using Kind = Operation::Kind;

// Values in the order [n, h, w, c], whatever the strides in memory.
using Values = std::vector<double>;

// Calls visit(i, offset) for each element, in the order [n, h, w, c]. `offset`
// is the element's place in memory.
template <typename Visit>
void ForEachElement(const GraphTensor& t, const Visit& visit) {
  const auto& [n, c, h, w] = t.dims;
  size_t i = 0;
  for (int64_t in = 0; in < n; ++in) {
    for (int64_t ih = 0; ih < h; ++ih) {
      for (int64_t iw = 0; iw < w; ++iw) {
        const int64_t pixel =
            in * t.strides[0] + ih * t.strides[2] + iw * t.strides[3];
        for (int64_t ic = 0; ic < c; ++ic) {
          visit(i++, pixel + ic * t.strides[1]);
        }
      }
    }
  }
}

Values Load(const GraphTensor& t, const void* memory) {
  Values values(static_cast<size_t>(t.count()));
  ForEachElement(t, [&](size_t i, int64_t offset) {
    values[i] = ReadElement(TypeOf(t.type), memory, offset);
  });
  return values;
}

void Store(const GraphTensor& t, const Values& values, void* memory) {
  ForEachElement(t, [&](size_t i, int64_t offset) {
    WriteElement(TypeOf(t.type), values[i], memory, offset);
  });
}

// Rounds the values to the type of a virtual tensor.
void RoundTo(DataType type, Values& values) {
  for (double& value : values) {
    float memory = 0;
    WriteElement(type, value, &memory, 0);
    value = ReadElement(type, &memory, 0);
  }
}

// Calls visit(x, w, y) for each pair of a pixel of x and a pixel of y that have
// a product, with the index of their first channels. w is the number of their
// weights' position in the kernel.
template <typename Visit>
void ForEachPair(const Operation& op, const Visit& visit) {
  const auto& [n, c, h, w] = op.x.dims;
  const auto& [k, unused, r, s] = op.w.dims;
  const int64_t out_h = op.y.dims[2], out_w = op.y.dims[3];
  for (int64_t pixel = 0; pixel < n * out_h * out_w; ++pixel) {
    const int64_t top = pixel / out_w % out_h * op.strides[0];
    const int64_t left = pixel % out_w * op.strides[1];
    for (int64_t weight = 0; weight < r * s; ++weight) {
      const int64_t row =
          top + weight / s * op.dilations[0] - op.pre_paddings[0];
      const int64_t column =
          left + weight % s * op.dilations[1] - op.pre_paddings[1];
      if (row < 0 || row >= h || column < 0 || column >= w) continue;
      const int64_t image = pixel / (out_h * out_w);
      visit(((image * h + row) * w + column) * c, weight, pixel * k);
    }
  }
}

// Computes a convolution or a gradient. The result's previous values are
// ignored. Loops run over the channels that are adjacent in memory.
void Convolve(const Operation& op, Values& x, Values& w, Values& y) {
  const int64_t c = op.x.dims[1], k = op.y.dims[1];
  const int64_t positions = op.w.dims[2] * op.w.dims[3];
  double* const px = x.data();
  double* const pw = w.data();
  double* const py = y.data();
  if (op.kind == Kind::kForward) {
    Values by_output(w.size());  // The weights as [r, s, c, k].
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < positions * c; ++i) {
        by_output[static_cast<size_t>(i * k + j)] = pw[j * positions * c + i];
      }
    }
    const double* const weights = by_output.data();
    ForEachPair(op, [&](int64_t in, int64_t position, int64_t out) {
      for (int64_t i = 0; i < c; ++i) {
        const double value = px[in + i];
        const double* const row = weights + (position * c + i) * k;
        for (int64_t j = 0; j < k; ++j) py[out + j] += value * row[j];
      }
    });
    return;
  }
  const bool of_input = op.kind == Kind::kInputGradient;
  ForEachPair(op, [&](int64_t in, int64_t position, int64_t out) {
    for (int64_t j = 0; j < k; ++j) {
      const double value = py[out + j];
      double* const row = pw + (j * positions + position) * c;
      double* const sums = of_input ? px + in : row;
      const double* const factors = of_input ? row : px + in;
      for (int64_t i = 0; i < c; ++i) sums[i] += value * factors[i];
    }
  });
}

// Returns x + b.
Values Add(const Operation& op, const Values& x, const Values& b) {
  GraphTensor repeated = op.y;  // b, with b's strides.
  int64_t stride = 1;
  for (const size_t axis : {size_t{1}, size_t{3}, size_t{2}, size_t{0}}) {
    repeated.strides[axis] = op.w.dims[axis] == 1 ? 0 : stride;
    stride *= op.w.dims[axis];
  }
  Values sum = x;
  ForEachElement(repeated, [&](size_t i, int64_t offset) {
    sum[i] += b[static_cast<size_t>(offset)];
  });
  return sum;
}

Values Compute(const Operation& op, std::map<int64_t, Values>& values) {
  if (op.kind == Kind::kAdd) {
    return Add(op, values[op.x.uid], values[op.w.uid]);
  }
  if (op.kind == Kind::kRelu) {
    Values y = values[op.x.uid];
    for (double& value : y) value = value < 0 ? 0 : value;
    return y;
  }
  Values result(static_cast<size_t>(op.result().count()));
  const auto of = [&](const GraphTensor& t) -> Values& {
    return t.uid == op.result().uid ? result : values[t.uid];
  };
  Convolve(op, of(op.x), of(op.w), of(op.y));
  return result;
}

absl::Status Mismatch(const Operation& op, const char* what) {
  const auto text = [](const GraphTensor& t) {
    return absl::StrCat("[", absl::StrJoin(t.dims, ","), "]");
  };
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": x ", text(op.x),
      op.kind == Kind::kRelu ? "" : absl::StrCat(", w ", text(op.w)), ", y ",
      text(op.y)));
}

absl::Status CheckConvolution(const Operation& op) {
  if (op.x.dims[0] != op.y.dims[0]) {
    return Mismatch(op, "x and y have different numbers of images");
  }
  if (op.x.dims[1] != op.w.dims[1] || op.y.dims[1] != op.w.dims[0]) {
    return Mismatch(op, "the channels do not match the weights");
  }
  for (size_t i = 0; i < 2; ++i) {
    if (op.strides[i] < 1 || op.dilations[i] < 1 || op.pre_paddings[i] < 0 ||
        op.post_paddings[i] < 0) {
      return Mismatch(
          op, "strides and dilations must be at least 1, paddings at least 0");
    }
    const int64_t kernel = (op.w.dims[2 + i] - 1) * op.dilations[i] + 1;
    const int64_t room =
        op.x.dims[2 + i] + op.pre_paddings[i] + op.post_paddings[i] - kernel;
    if (room < 0 || op.y.dims[2 + i] != room / op.strides[i] + 1) {
      return Mismatch(op, "y does not have the convolution's height and width");
    }
  }
  return absl::OkStatus();
}

// Checks one tensor's memory.
absl::Status CheckTensor(const GraphTensor& t, const GraphMemory& memory) {
  const auto found = memory.tensors.find(t.uid);
  const auto name = [&] { return absl::StrCat("tensor ", t.uid); };
  if (found == memory.tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " is not in the variant pack"));
  }
  if (!IsDeviceRange(found->second, static_cast<size_t>(t.bytes()))) {
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

int64_t GraphTensor::bytes() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return (last + 1) * SizeOf(TypeOf(type));
}

std::vector<const GraphTensor*> Operation::operands() const {
  switch (kind) {
    case Kind::kInputGradient:
      return {&w, &y};
    case Kind::kWeightGradient:
      return {&x, &y};
    case Kind::kRelu:
      return {&x};
    default:
      return {&x, &w};
  }
}

absl::Status CheckOperation(const Operation& op) {
  if (op.kind != Kind::kAdd && op.kind != Kind::kRelu) {
    return CheckConvolution(op);
  }
  if (op.x.dims != op.y.dims) return Mismatch(op, "x and y differ");
  for (size_t i = 0; op.kind == Kind::kAdd && i < 4; ++i) {
    if (op.w.dims[i] != 1 && op.w.dims[i] != op.y.dims[i]) {
      return Mismatch(op, "the second term cannot be broadcast");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGraph(std::span<const Operation> graph) {
  std::map<int64_t, GraphTensor> tensors;
  std::set<int64_t> written;
  for (const Operation& op : graph) {
    std::vector<const GraphTensor*> all = op.operands();
    for (const GraphTensor* const t : all) {
      if (t->is_virtual && !written.contains(t->uid)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "no earlier operation writes the virtual tensor ", t->uid));
      }
    }
    all.push_back(&op.result());
    for (const GraphTensor* const t : all) {
      if (tensors.try_emplace(t->uid, *t).first->second != *t) {
        return absl::InvalidArgumentError(
            absl::StrCat("two tensors have the number ", t->uid));
      }
    }
    if (!written.insert(op.result().uid).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two operations write tensor ", op.result().uid));
    }
  }
  return graph.back().result().is_virtual
             ? absl::InvalidArgumentError("the graph's result is virtual")
             : absl::OkStatus();
}

int64_t WorkspaceBytes(std::span<const Operation> graph) {
  constexpr int64_t kBytesPerChannel = 256;
  return kBytesPerChannel * graph.front().y.dims[1];
}

absl::Status CheckMemory(std::span<const Operation> graph,
                         const GraphMemory& memory) {
  for (const Operation& op : graph) {
    std::vector<const GraphTensor*> all = op.operands();
    all.push_back(&op.result());
    for (const GraphTensor* const t : all) {
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

void Run(std::span<const Operation> graph, const GraphMemory& memory) {
  const auto overwrite_workspace = [&] {
    std::memset(memory.workspace, 0xff,
                static_cast<size_t>(WorkspaceBytes(graph)));
  };
  overwrite_workspace();
  std::map<int64_t, Values> values;
  for (const Operation& op : graph) {
    for (const GraphTensor* const t : op.operands()) {
      if (t->is_virtual || values.contains(t->uid)) continue;
      values[t->uid] = Load(*t, memory.tensors.at(t->uid));
    }
    const GraphTensor& result = op.result();
    Values computed = Compute(op, values);
    if (result.is_virtual) {
      RoundTo(TypeOf(result.type), computed);
    } else {
      Store(result, computed, memory.tensors.at(result.uid));
      computed = Load(result, memory.tensors.at(result.uid));
    }
    values[result.uid] = std::move(computed);
  }
  overwrite_workspace();
}

}  // namespace lockstep::standin::cudnn
