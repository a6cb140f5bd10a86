// The text is parsed twice: the first pass only checks it, the second keeps it.
#include "conformance/protocol/json_fields.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep::conformance {
namespace {

using Json = nlohmann::json;

// Returns at most 60 bytes of a foreign text, in printable form.
std::string Shortened(const std::string& text) {
  constexpr size_t kMost = 60;
  const std::string escaped = absl::CHexEscape(text.substr(0, kMost));
  return text.size() > kMost ? absl::StrCat(escaped, "...") : escaped;
}

std::string Described(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return absl::StrCat("\"", Shortened(value.get<std::string>()), "\"");
    default:
      return value.dump();
  }
}

// Checks a document without keeping it. A damaged document could take many
// times its size in memory. Also, the kept form no longer shows duplicate keys.
class TextCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    what_ = absl::StrCat("has the key '", Shortened(key), "' twice");
    return false;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_at_ = position;
    return false;
  }

  // Returns the error of a document that was not parsed to its end.
  std::string What(const std::string& text) const {
    if (!what_.empty()) return what_;
    std::string what = absl::StrCat("is not JSON, at byte ", error_at_);
    const size_t last = error_at_ == 0 ? 0 : error_at_ - 1;
    if (last < text.size() && (text[last] == 'N' || text[last] == 'I')) {
      what += "; what is no number is written \"nan\", \"inf\" or \"-inf\"";
    }
    return what;
  }

 private:
  bool Enter() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxJsonDepth) return true;
    what_ = absl::StrCat("is nested more than ", kMaxJsonDepth, " deep");
    return false;
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;
  std::string what_;
  size_t error_at_ = 0;
};

bool IsInteger(const Json& value, int64_t least, int64_t most) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return false;
  return least <= value.get<int64_t>() && value.get<int64_t>() <= most;
}

std::string IntegerFrom(int64_t least, int64_t most) {
  return absl::StrCat("an integer from ", least, " to ", most);
}

}  // namespace

absl::StatusOr<Json> ParseForeignJson(const std::string& text,
                                      const std::string& path) {
  TextCheck check;
  // The parser would take a zero byte for the end of the text.
  const size_t zero = text.find('\0');
  if (zero != std::string::npos) {
    return absl::DataLossError(
        absl::StrCat(path, ": is not JSON, at byte ", zero + 1));
  }
  if (!Json::sax_parse(text, &check)) {
    return absl::DataLossError(absl::StrCat(path, ": ", check.What(text)));
  }
  return Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
}

std::string FormatJson(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

JsonFields::JsonFields(const Json& json, std::string path, std::string where)
    : json_(&json), path_(std::move(path)), where_(std::move(where)) {
  static const Json& empty = *new Json(Json::object());
  if (json.is_object()) return;
  json_ = &empty;
  Check(absl::DataLossError(
      absl::StrCat(path_, ": ", where_.empty() ? "the document" : where_,
                   " is ", Described(json), ", not an object")));
}

bool JsonFields::Has(const char* key) const { return json_->contains(key); }

bool JsonFields::IsNull(const char* key) {
  const Json* value = Find(key);
  return value != nullptr && value->is_null();
}

bool JsonFields::Bool(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  FailValue(key, *value, "true or false");
  return false;
}

int64_t JsonFields::Integer(const char* key, int64_t least, int64_t most) {
  const Json* value = Find(key);
  if (value == nullptr) return least;
  if (IsInteger(*value, least, most)) return value->get<int64_t>();
  FailValue(key, *value, IntegerFrom(least, most));
  return least;
}

double JsonFields::Number(const char* key, double least) {
  const Json* value = Find(key);
  if (value == nullptr) return least;
  if (value->is_number() && value->get<double>() >= least) {
    return value->get<double>();
  }
  FailValue(key, *value, absl::StrCat("a number of at least ", least));
  return least;
}

double JsonFields::AnyNumber(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) return 0;
  if (value->is_number()) return value->get<double>();
  if (*value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (*value == "inf") return std::numeric_limits<double>::infinity();
  if (*value == "-inf") return -std::numeric_limits<double>::infinity();
  FailValue(key, *value, "a number, \"nan\", \"inf\" or \"-inf\"");
  return 0;
}

std::string JsonFields::Text(const char* key) {
  const Json* value = Find(key);
  if (value == nullptr) return "";
  if (!value->is_string()) {
    FailValue(key, *value, "a string");
    return "";
  }
  const std::string text = value->get<std::string>();
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    Fail(key,
         absl::StrCat("has ", text.size(), " bytes; at most ", kMaxTextBytes));
  }
  return text;
}

std::string JsonFields::OneOf(const char* key,
                              const std::vector<std::string>& choices) {
  const Json* value = Find(key);
  if (value == nullptr) return "";
  for (const std::string& choice : choices) {
    if (*value == choice) return choice;
  }
  FailValue(key, *value,
            absl::StrCat("\"", absl::StrJoin(choices, "\" or \""), "\""));
  return "";
}

std::vector<std::string> JsonFields::Names(const char* key) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  const Json& array = Array(key);
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_string() || array[i] == "") {
      FailValue(absl::StrCat(key, "[", i, "]"), array[i], "a name");
      return {};
    }
    names.push_back(array[i].get<std::string>());
    if (!seen.insert(names.back()).second) {
      Fail(key, absl::StrCat("has '", Shortened(names.back()), "' twice"));
      return {};
    }
  }
  return names;
}

std::vector<int64_t> JsonFields::Integers(const char* key, int64_t least,
                                          int64_t most) {
  std::vector<int64_t> integers;
  const Json& array = Array(key);
  integers.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    if (!IsInteger(array[i], least, most)) {
      FailValue(absl::StrCat(key, "[", i, "]"), array[i],
                IntegerFrom(least, most));
      return {};
    }
    integers.push_back(array[i].get<int64_t>());
  }
  return integers;
}

const Json& JsonFields::Array(const char* key) {
  static const Json& empty = *new Json(Json::array());
  const Json* value = Find(key);
  if (value == nullptr) return empty;
  if (value->is_array()) return *value;
  FailValue(key, *value, "an array");
  return empty;
}

JsonFields JsonFields::Object(const char* key) {
  static const Json& empty = *new Json(Json::object());
  const Json* value = Find(key);
  return JsonFields(value == nullptr ? empty : *value, path_, Full(key));
}

void JsonFields::Fail(const char* key, absl::string_view what) {
  Check(absl::DataLossError(absl::StrCat(path_, ": ", Full(key), " ", what)));
}

void JsonFields::Check(const absl::Status& status) { status_.Update(status); }

absl::Status JsonFields::Finish() {
  for (const auto& [key, value] : json_->items()) {
    if (!status_.ok()) break;
    if (read_keys_.contains(key)) continue;
    Check(absl::DataLossError(
        absl::StrCat(path_, ": unknown key '", Full(Shortened(key)), "'")));
  }
  return status_;
}

const Json* JsonFields::Find(const char* key) {
  read_keys_.insert(key);
  const auto found = json_->find(key);
  if (found != json_->end()) return &*found;
  Fail(key, "is missing");
  return nullptr;
}

void JsonFields::FailValue(const std::string& key, const Json& value,
                           absl::string_view want) {
  Fail(key.c_str(), absl::StrCat("is ", Described(value), ", not ", want));
}

std::string JsonFields::Full(absl::string_view key) const {
  return absl::StrCat(where_, where_.empty() ? "" : ".", key);
}

}  // namespace lockstep::conformance
