// Values as JSON of nlohmann's library; report/write.h has the whole report.
#ifndef LOCKSTEP_REPORT_WRITE_JSON_H_
#define LOCKSTEP_REPORT_WRITE_JSON_H_

#include <string>

#include "nlohmann/json.hpp"
#include "report/document.h"

namespace lockstep {

nlohmann::ordered_json ToJson(const report::Value& value);

// `json` as a JavaScript expression that is safe inside a <script> element,
// whatever its strings say: ASCII only, and without '<', so that no string can
// end the element or begin a comment. Bytes that are not UTF-8 become U+FFFD.
std::string JsonForScript(const nlohmann::ordered_json& json);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_WRITE_JSON_H_
