#include "models/io/safetensors_check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "models/io/fuzz_inputs.h"
#include "models/io/safetensors.h"

namespace lockstep {
namespace {

// Returns content with tensors of every type, with and without elements.
Safetensors Example() {
  Safetensors content;
  content.metadata = {{"format", "pt"}, {"é", "\"\n"}};
  for (const DataType type : kAllDataTypes) {
    const size_t size = static_cast<size_t>(SizeOf(type));
    content.tensors[absl::StrCat("layer.", Name(type))] = {
        type, {2, 1}, std::vector<std::byte>(2 * size, std::byte{0x7f})};
    content.tensors[Name(type)] = {type, {3, 0}, {}};
  }
  content.tensors["scalar"] = {DataType::kInt64, {}, std::vector<std::byte>(8)};
  return content;
}

}  // namespace

std::string SafetensorsBytes(const std::string& header,
                             const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return absl::StrCat(bytes, header, data);
}

std::string CheckSafetensors(const std::string& bytes, bool& accepted) {
  const absl::StatusOr<Safetensors> content = ParseSafetensors(bytes, "file");
  accepted = content.ok();
  if (!accepted) {
    if (!absl::IsDataLoss(content.status()) &&
        !absl::IsUnimplemented(content.status())) {
      return absl::StrCat("an error of another kind: ",
                          content.status().ToString());
    }
    return CheckMessage(content.status(), "file");
  }
  size_t total = 0;
  for (const auto& [name, tensor] : content->tensors) {
    total += tensor.data.size();
  }
  if (total > bytes.size()) return "more bytes than the file has";
  const absl::StatusOr<std::string> written = SerializeSafetensors(*content);
  if (!written.ok()) return "content that cannot be written";
  const absl::StatusOr<Safetensors> again = ParseSafetensors(*written, "file");
  if (!again.ok()) return "a written file that is refused";
  return *again == *content ? "" : "other content after writing";
}

std::vector<std::string> SafetensorsSeeds() {
  std::vector<std::string> seeds;
  for (const Safetensors& content : {Example(), Safetensors()}) {
    const absl::StatusOr<std::string> bytes = SerializeSafetensors(content);
    if (bytes.ok()) seeds.push_back(*bytes);
  }
  seeds.push_back(SafetensorsBytes("{}  ", ""));
  seeds.push_back(SafetensorsBytes(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  seeds.push_back(SafetensorsBytes(
      R"({"b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"I32","shape":[],"data_offsets":[0,4]}})",
      "12345678"));
  seeds.push_back(SafetensorsBytes(
      R"({"a":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}})", "1234"));
  seeds.push_back(SafetensorsBytes(std::string(1000, '['), ""));
  seeds.push_back(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
  return seeds;
}

}  // namespace lockstep
