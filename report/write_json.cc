// JSON in the order of the document's members.
#include "report/write_json.h"

#include <string>
#include <variant>

#include "absl/strings/str_replace.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

struct Converter {
  template <typename T>
  Json operator()(const T& value) const {
    return value;
  }
  Json operator()(const report::Value::Array& values) const {
    Json json = Json::array();
    for (const report::Value& value : values) json.push_back(ToJson(value));
    return json;
  }
  Json operator()(const report::Value::Object& members) const {
    Json json = Json::object();
    for (const auto& [key, value] : members) json[key] = ToJson(value);
    return json;
  }
};

}  // namespace

Json ToJson(const report::Value& value) {
  return std::visit(Converter(), value.variant());
}

std::string JsonForScript(const Json& json) {
  return absl::StrReplaceAll(
      json.dump(-1, ' ', true, Json::error_handler_t::replace),
      {{"<", "\\u003c"}});
}

std::string report::JsonText(const Document& document) {
  const Origin& origin = document.origin;
  Json json = {{"report", document.name},
               {"schema_version", document.schema_version},
               {"created", origin.created},
               {"command", origin.command},
               {"commit", ToJson(TextOrNull(origin.commit))},
               {"machine",
                {{"cpu", origin.machine.cpu},
                 {"cores", origin.machine.cores},
                 {"memory_bytes", origin.machine.memory_bytes},
                 {"system", origin.machine.system}}}};
  if (!document.data.is_null()) json.update(ToJson(document.data));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
