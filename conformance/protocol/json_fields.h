// Strict reading of JSON written by other programs, and the limits beyond which
// the protocol's files count as damaged.
#ifndef LOCKSTEP_CONFORMANCE_PROTOCOL_JSON_FIELDS_H_
#define LOCKSTEP_CONFORMANCE_PROTOCOL_JSON_FIELDS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {

inline constexpr int64_t kProtocol = 1;  // The protocol's version.

inline constexpr int kMaxRanksOfCase = 4096;
// Enough for about ten million indices. In memory, a document of single digits
// takes eight times its size, and one of empty objects thirty times.
inline constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 30;
// The largest size of a name, a version or a reason.
inline constexpr int64_t kMaxTextBytes = 1 << 16;

// Parses a document. `path` names the file in errors. Errors: kDataLoss, with
// the position, if the text is not JSON in UTF-8, an object has a key twice, or
// values are nested more than kMaxJsonDepth deep.
inline constexpr int kMaxJsonDepth = 16;
absl::StatusOr<nlohmann::json> ParseForeignJson(const std::string& text,
                                                const std::string& path);

// Returns the text of a document, in UTF-8, with a line feed at the end.
// indent: -1 for one line.
std::string FormatJson(const nlohmann::ordered_json& json, int indent);

// Reads the members of an object, one by one. Finish() returns the first error:
// a missing member, or one with an invalid value. After an error the functions
// may still be called, but their results have no meaning. Not thread safe.
class JsonFields {
 public:
  // json: borrowed. path, where: used in errors; the file, and the key of this
  // object ("" for the document).
  JsonFields(const nlohmann::json& json, std::string path,
             std::string where = "");

  bool Has(const char* key) const;
  // Returns whether the member exists and is null. A member that is null then
  // counts as read.
  bool IsNull(const char* key);

  bool Bool(const char* key);
  int64_t Integer(const char* key, int64_t least, int64_t most);
  // Reads a finite number of at least `least`.
  double Number(const char* key, double least);
  // Reads a number, or "nan", "inf" or "-inf".
  double AnyNumber(const char* key);
  // Reads a text of at most kMaxTextBytes.
  std::string Text(const char* key);
  std::string OneOf(const char* key, const std::vector<std::string>& choices);
  // Reads distinct texts, each not empty.
  std::vector<std::string> Names(const char* key);
  std::vector<int64_t> Integers(const char* key, int64_t least, int64_t most);
  // Returns the array itself; an empty array if there is none.
  const nlohmann::json& Array(const char* key);
  // Returns the reader of a member that is an object. The caller must pass the
  // result of that reader's Finish() to Check().
  JsonFields Object(const char* key);

  // Records an error about a key, or any other error.
  void Fail(const char* key, absl::string_view what);
  void Check(const absl::Status& status);

  // Returns the first error: kDataLoss, with the path and the key. A member
  // that was not read is an error too.
  absl::Status Finish();

 private:
  const nlohmann::json* Find(const char* key);
  void FailValue(const std::string& key, const nlohmann::json& value,
                 absl::string_view want);
  std::string Full(absl::string_view key) const;

  const nlohmann::json* json_;  // Always an object, possibly empty.
  std::string path_;
  std::string where_;
  std::set<std::string> read_keys_;
  absl::Status status_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_PROTOCOL_JSON_FIELDS_H_
