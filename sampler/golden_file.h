// What the files of testdata/ say that the real libraries draw.
#ifndef LOCKSTEP_SAMPLER_GOLDEN_FILE_H_
#define LOCKSTEP_SAMPLER_GOLDEN_FILE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace lockstep {

// The lines of testdata/`name` but for comments and empty ones; the file is
// among the test's data. Errors: kNotFound if it cannot be read.
absl::StatusOr<std::vector<std::string>> ReadGoldenLines(
    const std::string& name);

// What `parse` makes of each of those lines: absl::StatusOr<Record> of a
// std::string. Errors: also the first of `parse`.
template <typename Record>
absl::StatusOr<std::vector<Record>> ReadGoldenRecords(
    const std::string& name,
    absl::StatusOr<Record> (*parse)(const std::string& line)) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                            ReadGoldenLines(name));
  std::vector<Record> records;
  for (const std::string& line : lines) {
    LOCKSTEP_ASSIGN_OR_RETURN(records.emplace_back(), parse(line));
  }
  return records;
}

// A step of the scripts' hash: a polynomial modulo 2^64, sensitive to the items
// and to their order. It starts at 0; an index enters as index + 1.
inline uint64_t GoldenHashStep(uint64_t hash, uint64_t item) {
  return hash * 6364136223846793005u + item;
}

// What a record says about a list.
struct GoldenList {
  bool hashed = false;
  int64_t count = 0;           // If hashed.
  uint64_t hash = 0;           // If hashed.
  std::vector<int64_t> items;  // All; if hashed, the first and the last three,
                               // which overlap in short lists.
};

// The list at the end of a record: `list` has the items alone, `hash` has
// COUNT HASH ITEM... . Errors: kDataLoss for another kind, or if the record
// ends early or has something else than numbers; what came before the list
// counts too, if it was read from the same stream.
absl::StatusOr<GoldenList> ParseGoldenList(const std::string& kind,
                                           std::istream& record);

// Errors: kDataLoss, "hash differs" or "items differ", unless `items` are what
// the record says.
absl::Status CheckGoldenList(const GoldenList& golden,
                             const std::vector<int64_t>& items);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_GOLDEN_FILE_H_
