// The safetensors format: a length, a JSON header, and the tensors' bytes.
#include "models/io/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "models/model.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr int64_t kLengthBytes = 8;
// The format's own limit. The limit keeps a damaged length from reserving
// memory.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

constexpr std::pair<const char*, DataType> kTypes[] = {
    {"F64", DataType::kFloat64}, {"F32", DataType::kFloat32},
    {"F16", DataType::kFloat16}, {"BF16", DataType::kBFloat16},
    {"I32", DataType::kInt32},   {"I64", DataType::kInt64},
    {"U8", DataType::kUInt8},
};

const char* TypeName(DataType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  return "";
}

absl::Status Damaged(absl::string_view name, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(name, ": ", what));
}

// Returns a text of the file for a message: printable, and at most 100 bytes of
// it.
std::string PrintablePrefix(const std::string& text) {
  constexpr size_t kMost = 100;
  if (text.size() <= kMost) return absl::Utf8SafeCEscape(text);
  size_t end = kMost;
  // Stays on a character's boundary.
  while (end > 0 && (text[end] & 0xc0) == 0x80) --end;
  return absl::StrCat(absl::Utf8SafeCEscape(text.substr(0, end)), "...");
}

absl::Status DamagedTensor(absl::string_view name, const std::string& tensor,
                           absl::string_view what) {
  return Damaged(name,
                 absl::StrCat("tensor '", PrintablePrefix(tensor), "' ", what));
}

// Returns the bytes of a tensor, or nothing if a dimension is negative or the
// number exceeds int64.
std::optional<int64_t> ByteSize(const std::vector<int64_t>& shape,
                                DataType type) {
  int64_t size = SizeOf(type);
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(size, dimension, &size)) {
      return std::nullopt;
    }
  }
  return size;
}

// Returns the integers of a JSON array, or nothing unless all are non-negative
// and fit int64.
std::optional<std::vector<int64_t>> ParseIntegers(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<int64_t> integers;
  for (const Json& element : json) {
    if (!element.is_number_unsigned() ||
        element.get<uint64_t>() > uint64_t{INT64_MAX}) {
      return std::nullopt;
    }
    integers.push_back(element.get<int64_t>());
  }
  return integers;
}

absl::StatusOr<Json> ParseHeader(absl::string_view bytes,
                                 absl::string_view name) {
  if (bytes.size() < kLengthBytes) {
    return Damaged(name, "is not a safetensors file");
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const char* begin = bytes.data() + kLengthBytes;
  const absl::string_view rest = bytes.substr(kLengthBytes);
  if (length > kMaxHeaderBytes || (!rest.empty() && rest[0] != '{')) {
    return Damaged(name, "is not a safetensors file");
  }
  if (length > rest.size()) {
    return Damaged(name,
                   absl::StrCat("is cut off: its header has ", length,
                                " bytes, but the file has ", bytes.size()));
  }
  Json header = Json::parse(begin, begin + length, /*cb=*/nullptr,
                            /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged(name, "its header is not JSON");
  return header;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(
    const Json& json, absl::string_view name) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) return Damaged(name, "its metadata is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Damaged(name, "its metadata has a value that is not a string");
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// A tensor of the header, with its position in the file instead of its bytes.
struct Entry {
  std::string name;
  NamedTensor tensor;
  int64_t begin = 0;
  int64_t end = 0;
};

absl::StatusOr<Entry> ParseEntry(const std::string& key, const Json& json,
                                 absl::string_view name) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json["dtype"].is_string()) {
    return DamagedTensor(name, key, "lacks a dtype, shape or data_offsets");
  }
  Entry entry;
  entry.name = key;
  const std::string type = json["dtype"].get<std::string>();
  const auto* known =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const auto& pair) { return pair.first == type; });
  if (known == std::end(kTypes)) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": tensor '", PrintablePrefix(key), "' has type ",
                     PrintablePrefix(type), ", which is not supported"));
  }
  entry.tensor.type = known->second;
  std::optional<std::vector<int64_t>> shape = ParseIntegers(json["shape"]);
  const std::optional<std::vector<int64_t>> offsets =
      ParseIntegers(json["data_offsets"]);
  if (!shape || !offsets || offsets->size() != 2) {
    return DamagedTensor(name, key, "has a malformed shape or data_offsets");
  }
  entry.tensor.shape = *std::move(shape);
  entry.begin = (*offsets)[0];
  entry.end = (*offsets)[1];
  const std::optional<int64_t> size =
      ByteSize(entry.tensor.shape, entry.tensor.type);
  if (entry.end < entry.begin || size != entry.end - entry.begin) {
    return DamagedTensor(name, key, "has a shape that does not fit its bytes");
  }
  return entry;
}

// Fills in the tensors' bytes. The tensors must cover `data` without gap or
// overlap.
absl::Status CopyData(std::vector<Entry>& entries, absl::string_view data,
                      absl::string_view name) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t covered = 0;
  for (Entry& entry : entries) {
    if (entry.begin != covered) {
      return DamagedTensor(name, entry.name,
                           "does not begin where the one before it ends");
    }
    if (entry.end > static_cast<int64_t>(data.size())) {
      return DamagedTensor(name, entry.name, "ends beyond the file");
    }
    entry.tensor.data.resize(entry.end - entry.begin);
    std::copy_n(reinterpret_cast<const std::byte*>(data.data()) + entry.begin,
                entry.tensor.data.size(), entry.tensor.data.begin());
    covered = entry.end;
  }
  if (covered != static_cast<int64_t>(data.size())) {
    return Damaged(
        name,
        absl::StrCat("has ", data.size(),
                     " bytes of data, but its header accounts for ", covered));
  }
  return absl::OkStatus();
}

// One tensor of the model: its type, its shape and its memory.
struct Target {
  DataType type;
  std::vector<int64_t> shape;
  std::span<std::byte> bytes;
};

std::map<std::string, Target> TargetsOf(Parameters& parameters,
                                        Buffers& buffers) {
  std::map<std::string, Target> targets;
  for (int i = 0; i < parameters.count(); ++i) {
    const ParameterSpec& spec = parameters.specs()[i];
    targets[spec.name] = {DataType::kFloat32, spec.shape,
                          std::as_writable_bytes(parameters.value(i))};
  }
  for (int i = 0; i < buffers.count(); ++i) {
    const BufferSpec& spec = buffers.specs()[i];
    targets[spec.name] = {
        spec.type, spec.shape,
        spec.type == DataType::kFloat32
            ? std::as_writable_bytes(buffers.value(i))
            : std::as_writable_bytes(std::span(&buffers.counter(i), 1))};
  }
  return targets;
}

// Returns, for example, "float32 [20, 1, 3, 3]".
std::string Describe(DataType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(Name(type), " [", absl::StrJoin(shape, ", "), "]");
}

absl::Status MismatchError(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

// Rejects an int64 tensor that is no valid count of batches. Counting must be
// able to go on, so int64's maximum is rejected too.
absl::Status CheckCounter(const NamedTensor& tensor, const std::string& name,
                          absl::string_view file) {
  if (tensor.type != DataType::kInt64) return absl::OkStatus();
  int64_t count = 0;
  std::memcpy(&count, tensor.data.data(), sizeof(count));
  if (count >= 0 && count < std::numeric_limits<int64_t>::max()) {
    return absl::OkStatus();
  }
  return MismatchError(file, absl::StrCat("tensor '", name, "' is ", count,
                                          ", which is not a count of batches"));
}

// Rejects a NaN or an infinity. ReLU may turn a NaN into zero, so the loss
// would not show the NaN.
absl::Status CheckFinite(const NamedTensor& tensor, const std::string& name,
                         absl::string_view file) {
  if (tensor.type != DataType::kFloat32) return absl::OkStatus();
  for (size_t at = 0; at < tensor.data.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &tensor.data[at], sizeof(value));
    if (std::isfinite(value)) continue;
    return MismatchError(
        file, absl::StrCat("tensor '", name, "' has ", value, " at element ",
                           at / sizeof(float)));
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const NamedTensors& tensors,
                          const std::map<std::string, Target>& targets,
                          absl::string_view file) {
  for (const auto& [name, target] : targets) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      return MismatchError(file, absl::StrCat("has no tensor '", name, "'"));
    }
    const NamedTensor& tensor = found->second;
    if (tensor.type != target.type || tensor.shape != target.shape) {
      return MismatchError(file,
                           absl::StrCat("tensor '", name, "' is ",
                                        Describe(tensor.type, tensor.shape),
                                        ", but the model's is ",
                                        Describe(target.type, target.shape)));
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckCounter(tensor, name, file));
    LOCKSTEP_RETURN_IF_ERROR(CheckFinite(tensor, name, file));
  }
  for (const auto& [name, tensor] : tensors) {
    if (!targets.contains(name)) {
      return MismatchError(file,
                           absl::StrCat("tensor '", absl::Utf8SafeCEscape(name),
                                        "' is not in the model"));
    }
  }
  return absl::OkStatus();
}

// Returns the parameters' parts of `flat`, which has the parameters' layout.
NamedTensors TensorsOf(const Parameters& parameters,
                       std::span<const float> flat) {
  NamedTensors tensors;
  for (const ParameterSpec& spec : parameters.specs()) {
    tensors[spec.name] = NamedTensor::Of(spec.shape, spec.Part(flat));
  }
  return tensors;
}

}  // namespace

absl::StatusOr<Safetensors> ParseSafetensors(absl::string_view bytes,
                                             absl::string_view name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Json header, ParseHeader(bytes, name));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  Safetensors content;
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.items()) {
    if (key == kMetadata) {
      LOCKSTEP_ASSIGN_OR_RETURN(content.metadata, ParseMetadata(value, name));
      continue;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Entry entry, ParseEntry(key, value, name));
    entries.push_back(std::move(entry));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CopyData(entries, bytes.substr(kLengthBytes + length), name));
  for (Entry& entry : entries) {
    content.tensors.emplace(std::move(entry.name), std::move(entry.tensor));
  }
  return content;
}

absl::StatusOr<std::string> SerializeSafetensors(const Safetensors& content) {
  Json header = Json::object();
  if (!content.metadata.empty()) header[kMetadata] = content.metadata;
  std::string data;
  for (const auto& [name, tensor] : content.tensors) {
    const std::optional<int64_t> size = ByteSize(tensor.shape, tensor.type);
    if (name == kMetadata || size != static_cast<int64_t>(tensor.data.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", absl::Utf8SafeCEscape(name),
                       "' has a reserved name, or its ", tensor.data.size(),
                       " bytes do not fit its shape"));
    }
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()),
                tensor.data.size());
    header[name] = {{"dtype", TypeName(tensor.type)},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, data.size()}}};
  }
  std::string text =
      header.dump(-1, ' ', false, Json::error_handler_t::replace);
  // The format aligns the data to 8 bytes with spaces after the header.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return absl::StrCat(bytes, text, data);
}

absl::StatusOr<Safetensors> ReadSafetensors(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  return ParseSafetensors(bytes, path);
}

absl::Status WriteSafetensors(const std::string& path,
                              const Safetensors& content) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes,
                            SerializeSafetensors(content));
  return ReplaceFile(path, bytes);
}

NamedTensors ValueTensors(const Parameters& parameters) {
  return TensorsOf(parameters, parameters.values());
}

NamedTensors GradientTensors(const Parameters& parameters) {
  return TensorsOf(parameters, parameters.gradients());
}

NamedTensors BufferTensors(const Buffers& buffers) {
  NamedTensors tensors;
  for (int i = 0; i < buffers.count(); ++i) {
    const BufferSpec& spec = buffers.specs()[i];
    if (spec.type == DataType::kFloat32) {
      tensors[spec.name] = NamedTensor::Of(spec.shape, buffers.value(i));
    } else {
      const int64_t counter = buffers.counter(i);
      tensors[spec.name] = NamedTensor::Of(spec.shape, std::span(&counter, 1));
    }
  }
  return tensors;
}

absl::Status LoadTensors(const NamedTensors& tensors, absl::string_view file,
                         Parameters& parameters, Buffers& buffers) {
  const std::map<std::string, Target> targets = TargetsOf(parameters, buffers);
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(tensors, targets, file));
  for (const auto& [name, target] : targets) {
    const std::vector<std::byte>& data = tensors.at(name).data;
    std::copy(data.begin(), data.end(), target.bytes.begin());
  }
  return absl::OkStatus();
}

}  // namespace lockstep
