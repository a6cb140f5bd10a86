#include "report/document.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep::report {
namespace {

const Value& Null() {
  static const Value& null = *new Value();
  return null;
}

}  // namespace

void Value::Add(Value value) {
  if (is_null()) value_ = Array();
  std::get<Array>(value_).push_back(std::move(value));
}

void Value::Add(std::string key, Value value) {
  if (is_null()) value_ = Object();
  std::get<Object>(value_).emplace_back(std::move(key), std::move(value));
}

size_t Value::size() const {
  if (const Array* const array = std::get_if<Array>(&value_)) {
    return array->size();
  }
  const Object* const object = std::get_if<Object>(&value_);
  return object == nullptr ? 0 : object->size();
}

std::vector<std::string> Value::keys() const {
  std::vector<std::string> keys;
  if (const Object* const object = std::get_if<Object>(&value_)) {
    for (const Member& member : *object) keys.push_back(member.first);
  }
  return keys;
}

const Value& Value::operator[](absl::string_view key) const {
  if (const Object* const object = std::get_if<Object>(&value_)) {
    for (const Member& member : *object) {
      if (member.first == key) return member.second;
    }
  }
  return Null();
}

const Value& Value::operator[](size_t index) const {
  const Array* const array = std::get_if<Array>(&value_);
  return array != nullptr && index < array->size() ? (*array)[index] : Null();
}

bool operator==(const Value& a, const Value& b) {
  const auto* const small = std::get_if<int64_t>(&a.value_);
  const auto* const large = std::get_if<uint64_t>(&b.value_);
  if (small != nullptr && large != nullptr) {
    return std::cmp_equal(*small, *large);
  }
  if (std::holds_alternative<uint64_t>(a.value_) &&
      std::holds_alternative<int64_t>(b.value_)) {
    return b == a;
  }
  return a.value_ == b.value_;
}

std::string Bar::Goal() const {
  return absl::StrCat(at_most ? "at most " : "at least ", needed,
                      unit.empty() ? "" : " ", unit);
}

std::string Bar::Outcome() const {
  if (!value.has_value()) return "not measured";
  return absl::StrCat(Significant(*value, 3), Met() ? ": met" : ": NOT met");
}

Value TextOrNull(absl::string_view text) {
  return text.empty() ? Value() : Value(text);
}

}  // namespace lockstep::report
