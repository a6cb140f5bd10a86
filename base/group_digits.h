// Numbers as people read them.
#ifndef LOCKSTEP_BASE_GROUP_DIGITS_H_
#define LOCKSTEP_BASE_GROUP_DIGITS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep {

// Returns 1234567 as "1,234,567".
inline std::string GroupDigits(int64_t count) {
  std::string text = absl::StrCat(count);
  for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > (count < 0);
       at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_GROUP_DIGITS_H_
