// Names and types of what is written.
#include "conformance/check/fake_step.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "conformance/check/case_files.h"
#include "conformance/check/check_case.h"
#include "conformance/check/fake_model.h"
#include "conformance/protocol/case.h"
#include "conformance/protocol/rank_output.h"

namespace lockstep {
namespace {

template <typename T>
bool Has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

void WriteFakeStep(const Case& c, const CaseFiles& files, int64_t step,
                   const FakeTensors& gradients, const FakeTensors& weights,
                   RankOutput& output) {
  const auto write = [&](const char* kind, const std::string& name,
                         const std::vector<float>& values) {
    const auto& shape = files.weights.tensors.at(name).shape;
    output.tensors[absl::StrCat(kind, ".", step, "/", name)] =
        name.ends_with("tracked")
            ? Int64Tensor(shape,
                          std::vector<int64_t>{static_cast<int64_t>(values[0])})
            : FloatTensor(shape, values);
  };
  for (const auto& [name, values] : weights) {
    const auto gradient = gradients.find(name);
    if (Has(c.write_gradients, step) && gradient != gradients.end() &&
        !Has(c.frozen, name)) {
      write("gradient", name, gradient->second);
    }
    if (Has(c.write_state, step)) {
      write(IsFakeBuffer(name) ? "buffer" : "parameter", name, values);
    }
  }
}

}  // namespace lockstep
