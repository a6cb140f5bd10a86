// Lines of indices, written in blocks.
#include "sampler/print_indices.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

// Enough for reads and writes to cost next to nothing.
constexpr int64_t kBlock = 1 << 14;

absl::Status Write(const std::string& text, std::FILE* out) {
  if (std::fwrite(text.data(), 1, text.size(), out) == text.size()) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "cannot write the indices");
}

}  // namespace

absl::Status PrintIndices(const EpochIndices& indices,
                          const PrintOptions& options, std::FILE* out) {
  int64_t end = indices.size();
  if (options.drop_partial) {
    end -= end % options.batch_size;
  }
  std::vector<int64_t> block;
  std::string text;
  int64_t in_line = 0;
  for (int64_t begin = options.start_index; begin < end; begin += kBlock) {
    block.resize(std::min(kBlock, end - begin));
    indices.Read(begin, block);
    text.clear();
    for (const int64_t index : block) {
      absl::StrAppend(&text, in_line > 0 ? " " : "", index);
      if (++in_line == options.batch_size) {
        text += '\n';
        in_line = 0;
      }
    }
    if (begin + kBlock >= end && in_line > 0) text += '\n';
    if (absl::Status status = Write(text, out); !status.ok()) return status;
  }
  if (std::fflush(out) != 0) {
    return absl::ErrnoToStatus(errno, "cannot write the indices");
  }
  return absl::OkStatus();
}

}  // namespace lockstep
