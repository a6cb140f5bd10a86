// The files of a report.
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep {

namespace {

using std::filesystem::file_type;

// file_type::none is what the system does not accept, such as a long name.
file_type TypeOf(const std::filesystem::path& file) {
  std::error_code error;  // Also set where there is no such file yet.
  return std::filesystem::status(file, error).type();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  LOCKSTEP_RETURN_IF_ERROR(ReplaceFile(path, text));
  Print(absl::StrCat("Wrote ", path, "\n"));
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeOutputFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "--output_dir: cannot write to ", folder, ": ", error.message()));
}

absl::Status CheckJsonPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::filesystem::path file = UserPath(path);
  const std::string folder =
      file.has_parent_path() ? file.parent_path().string() : ".";
  // Where ReplaceFile has the file until it is complete.
  const std::string partial = absl::StrCat(file.string(), ".partial");
  const file_type type = TypeOf(file);
  if (access(folder.c_str(), W_OK | X_OK) == 0 && type != file_type::none &&
      type != file_type::directory && TypeOf(partial) != file_type::none) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--json: cannot write to ", file.string()));
}

absl::Status WriteJsonFile(const std::string& path, const std::string& json) {
  return path.empty() ? absl::OkStatus() : WriteFile(UserPath(path), json);
}

absl::Status WriteReport(const std::string& folder, const std::string& name,
                         const report::Document& document,
                         const report::Document* page) {
  const std::string path = absl::StrCat(folder, "/", name);
  LOCKSTEP_RETURN_IF_ERROR(
      WriteFile(path + ".json", report::JsonText(document)));
  LOCKSTEP_RETURN_IF_ERROR(WriteFile(
      path + ".html", report::HtmlPage(page != nullptr ? *page : document)));
  return WriteFile(path + ".md", report::MarkdownPage(document));
}

}  // namespace lockstep
