#include "tools/gpu_bundle/host.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/subprocess.h"

namespace lockstep::gpu_bundle {
namespace {

namespace fs = std::filesystem;

// Returns the items of a list such as PATH, without empty ones.
std::vector<std::string> SplitPathList(const std::string& list) {
  return absl::StrSplit(list, ':', absl::SkipEmpty());
}

void AddOnce(std::vector<std::string>& all, const std::string& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

bool PathExists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns the entries of the folder whose names begin with `prefix`. They are
// sorted by name, last first, so that the latest of several versions comes
// first.
std::vector<std::string> EntriesOf(const std::string& folder,
                                   absl::string_view prefix) {
  std::vector<std::string> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), prefix)) {
      entries.push_back(entry->path().string());
    }
  }
  std::sort(entries.rbegin(), entries.rend());
  return entries;
}

// The result type of the driver's functions, as cuda.h declares them.
using CuResult = int;

// A library that is loaded and never unloaded, because NVIDIA's libraries leave
// threads behind.
struct Library {
  explicit Library(const char* file)
      : handle(dlopen(file, RTLD_LAZY | RTLD_LOCAL)) {}

  // Calls the function, or returns `absent` if the library does not have it.
  template <typename Result, typename... Args>
  Result Call(Result absent, const char* name, Args... args) const {
    using Function = Result (*)(Args...);
    const auto function = handle == nullptr
                              ? nullptr
                              : reinterpret_cast<Function>(dlsym(handle, name));
    return function == nullptr ? absent : function(args...);
  }

  void* handle;
};

constexpr CuResult kNoDevice = 100;    // CUDA_ERROR_NO_DEVICE
constexpr CuResult kNoFunction = 500;  // Like CUDA_ERROR_NOT_FOUND.

// Returns the library's version; "" if the library does not say it.
std::string VersionOf(absl::string_view name, const Library& library) {
  int number = 0;
  int major = 10000;  // The weights of the parts of the number.
  int minor = 100;
  if (absl::StartsWith(name, "libcudart.")) {
    library.Call(1, "cudaRuntimeGetVersion", &number);
    major = 1000;
    minor = 10;
  } else if (absl::StartsWith(name, "libnccl.")) {
    library.Call(1, "ncclGetVersion", &number);
  } else if (absl::StartsWith(name, "libcudnn.")) {
    number = static_cast<int>(library.Call<size_t>(0, "cudnnGetVersion"));
  }
  if (number == 0) return "";
  return absl::StrCat(number / major, ".", number % major / minor, ".",
                      number % minor);
}

// Returns what the programs cannot do with this library; "" if they can do all.
std::string LackOf(absl::string_view name, const Library& library) {
  constexpr int kWindowsSince = 22800;
  int number = kWindowsSince;
  if (absl::StartsWith(name, "libnccl.")) {
    library.Call(1, "ncclGetVersion", &number);
  }
  return number >= kWindowsSince ? "" : "kDirect needs 2.28";
}

std::vector<std::string> PythonsOnPath() {
  std::vector<std::string> pythons;
  for (const std::string& folder : SplitPathList(Variable("PATH"))) {
    const std::string python = absl::StrCat(folder, "/python3");
    if (access(python.c_str(), X_OK) == 0) AddOnce(pythons, python);
  }
  return pythons;
}

// Runs Python with the host's libraries instead of the bundle's.
SubprocessResult RunPython(const std::string& python, const char* program,
                           absl::Duration timeout) {
  return RunSubprocess(
      {python, "-c", program}, timeout,
      {.environment = {
           {"LD_LIBRARY_PATH", Variable("LOCKSTEP_HOST_LIBRARY_PATH")}}});
}

std::vector<std::string> WheelFolders() {
  std::vector<std::string> folders;
  for (const std::string& python : PythonsOnPath()) {
    const SubprocessResult said = RunPython(
        python,
        "import site, sys\n"
        "print('\\n'.join(sys.path + [site.getusersitepackages()]))\n",
        absl::Seconds(30));
    for (const absl::string_view path : absl::StrSplit(said.out, '\n')) {
      if (!absl::StartsWith(path, "/")) continue;
      for (const std::string& wheel :
           EntriesOf(absl::StrCat(path, "/nvidia"), "")) {
        if (PathExists(wheel + "/lib")) AddOnce(folders, wheel + "/lib");
      }
    }
  }
  return folders;
}

std::vector<std::string> ToolkitHomes() {
  std::vector<std::string> homes;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (!Variable(name).empty()) homes.push_back(Variable(name));
  }
  AddOnce(homes, "/usr/local/cuda");
  for (const std::string& home : EntriesOf("/usr/local", "cuda-")) {
    AddOnce(homes, home);
  }
  return homes;
}

constexpr const char* kSystemFolders[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/usr/local/lib", "/usr/lib"};

std::vector<std::string> FoldersToSearch() {
  std::vector<std::string> folders =
      SplitPathList(Variable("LOCKSTEP_CUDA_LIBS"));
  for (const std::string& folder :
       SplitPathList(Variable("LOCKSTEP_HOST_LIBRARY_PATH"))) {
    AddOnce(folders, folder);
  }
  for (const std::string& folder : WheelFolders()) AddOnce(folders, folder);
  for (const std::string& home : ToolkitHomes()) {
    AddOnce(folders, home + "/lib64");
    AddOnce(folders, home + "/lib");
  }
  for (const char* folder : kSystemFolders) AddOnce(folders, folder);
  std::erase_if(folders,
                [](const std::string& each) { return !PathExists(each); });
  return folders;
}

// Returns the libraries that cuDNN opens by itself. They have the runtime's
// release, or are of CUDA 12, for which there are builds of the same cuDNN.
std::vector<std::string> LibrariesOpenedByCudnn(
    const CudaFunctions& functions) {
  for (const auto& [name, called] : functions) {
    const size_t end = name.find(".so.");
    if (!absl::StartsWith(name, "libcudart.") || end == name.npos) continue;
    const std::string version = name.substr(end);
    std::vector<std::string> all;
    for (const std::string& each : {version, std::string(".so.12")}) {
      for (const char* stem : {"libcublas", "libcublasLt", "libnvrtc"}) {
        AddOnce(all, stem + each);
      }
    }
    return all;
  }
  return {};
}

// Returns the folder's library. If the library cannot be used, adds the reason
// to `passed_over`.
std::optional<CudaLibraries::Found> TryLibrary(
    const std::string& name, const std::string& folder,
    const std::vector<std::string>& called, CudaLibraries& libraries) {
  std::error_code error;
  std::string file = folder + "/" + name;
  const fs::path resolved = fs::canonical(file, error);
  if (!error) file = resolved.string();
  std::string version;
  std::string lack;
  if (!called.empty()) {
    const Library library(file.c_str());
    if (library.handle == nullptr) {
      AddOnce(libraries.passed_over, dlerror());
      return std::nullopt;
    }
    version = VersionOf(name, library);
    lack = LackOf(name, library);
    for (const std::string& function : called) {
      if (dlsym(library.handle, function.c_str()) != nullptr) continue;
      AddOnce(libraries.passed_over,
              absl::StrCat(file, ": ", version, " has no ", function));
      return std::nullopt;
    }
  }
  return CudaLibraries::Found{name, folder, file, version, lack};
}

// Returns the last part of the newest version GLIBCXX_3.4.N that the library
// has, or -1 if there is no such library.
int NewestCxxVersion(const std::string& file) {
  constexpr absl::string_view kPrefix = "GLIBCXX_3.4.";
  const absl::StatusOr<std::string> read = ReadFile(file);
  if (!read.ok()) return -1;
  const absl::string_view bytes = *read;
  int newest = -1;
  for (size_t at = bytes.find(kPrefix); at != bytes.npos;
       at = bytes.find(kPrefix, at + 1)) {
    int number = 0;
    for (size_t i = at + kPrefix.size();
         i < bytes.size() && absl::ascii_isdigit(bytes[i]); ++i) {
      number = 10 * number + (bytes[i] - '0');
    }
    newest = std::max(newest, number);
  }
  return newest;
}

// Links to the file under its own name, unless there is such a link.
absl::Status Link(const fs::path& file, const std::string& folder) {
  const fs::path link = fs::path(folder) / file.filename();
  std::error_code error;
  if (fs::is_symlink(link, error)) {
    return absl::OkStatus();  // libcublas has libcublasLt.
  }
  fs::create_symlink(fs::absolute(file), link, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot link ", link.string(), ": ", error.message()));
}

// Returns the first library that lacks nothing, or the first if all lack
// something.
std::optional<CudaLibraries::Found> FindLibrary(
    const std::string& name, const std::vector<std::string>& called,
    CudaLibraries& libraries) {
  std::optional<CudaLibraries::Found> lacking;
  for (const std::string& folder : libraries.looked) {
    if (!PathExists(folder + "/" + name)) continue;
    auto found = TryLibrary(name, folder, called, libraries);
    if (!found.has_value()) continue;
    if (found->lack.empty()) {
      if (lacking.has_value()) {
        AddOnce(libraries.passed_over,
                absl::StrCat(lacking->file, ": ", lacking->version, ", and ",
                             lacking->lack));
      }
      return found;
    }
    if (!lacking.has_value()) lacking = std::move(found);
  }
  return lacking;
}

}  // namespace

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::vector<Gpu>> FindGpus() {
  const Library driver("libcuda.so.1");
  const auto call = [&](const char* name, auto... args) {
    return driver.Call(kNoFunction, name, args...);
  };
  if (driver.handle == nullptr) {
    return absl::NotFoundError("no NVIDIA driver: libcuda.so.1 was not found");
  }
  int count = 0;
  CuResult error = call("cuInit", 0u);
  if (error == 0) error = call("cuDeviceGetCount", &count);
  if (error == kNoDevice || (error == 0 && count == 0)) {
    return absl::NotFoundError("the driver lists none");
  }
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the driver fails: error ", error));
  }
  std::vector<Gpu> gpus;
  for (int i = 0; i < count; ++i) {
    int device = 0;
    char name[256] = "";
    error = call("cuDeviceGet", &device, i);
    if (error == 0) {
      error = call("cuDeviceGetName", &name[0], static_cast<int>(sizeof(name)),
                   device);
    }
    if (error != 0) {
      return absl::UnavailableError(absl::StrCat(
          "the driver does not say what GPU ", i, " is: error ", error));
    }
    constexpr int kComputeMode = 20;  // CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
    int mode = 0;                     // CU_COMPUTEMODE_DEFAULT
    call("cuDeviceGetAttribute", &mode, kComputeMode, device);
    gpus.push_back({.name = name, .exclusive = mode != 0});
  }
  return gpus;
}

absl::Status CheckDriver(const CudaFunctions& functions) {
  constexpr absl::string_view kRuntime = "libcudart.so.";
  int needed = 0;
  for (const auto& [name, called] : functions) {
    absl::string_view release = name;
    if (absl::ConsumePrefix(&release, kRuntime) &&
        !absl::SimpleAtoi(release, &needed)) {
      needed = 0;
    }
  }
  int version = 0;
  Library("libcuda.so.1").Call(kNoFunction, "cuDriverGetVersion", &version);
  if (version / 1000 >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the driver is for CUDA ", version / 1000, ".", version % 1000 / 10,
      ", and the programs need one for CUDA ", needed, ".0 or later"));
}

CudaLibraries FindCudaLibraries(const CudaFunctions& functions) {
  CudaLibraries libraries;
  libraries.looked = FoldersToSearch();
  CudaFunctions wanted = functions;
  for (const std::string& name : LibrariesOpenedByCudnn(functions))
    wanted[name];
  for (const auto& [name, called] : wanted) {
    auto found = FindLibrary(name, called, libraries);
    if (found.has_value()) {
      libraries.found.push_back(*std::move(found));
    } else if (functions.contains(name)) {
      libraries.missing.push_back(name);
    }
  }
  return libraries;
}

std::string FindNewerCxxLibrary(const std::string& folder) {
  constexpr absl::string_view kName = "/libstdc++.so.6";
  int newest = NewestCxxVersion(absl::StrCat(folder, kName));
  if (newest < 0) return "";
  std::string newer;
  std::vector<std::string> folders =
      SplitPathList(Variable("LOCKSTEP_HOST_LIBRARY_PATH"));
  folders.insert(folders.end(), std::begin(kSystemFolders),
                 std::end(kSystemFolders));
  for (const std::string& each : folders) {
    const std::string file = absl::StrCat(each, kName);
    const int version = NewestCxxVersion(file);
    if (version <= newest) continue;
    newest = version;
    newer = file;
  }
  return newer;
}

absl::Status LinkCxxLibrary(const std::string& file,
                            const std::string& folder) {
  const fs::path beside = fs::path(file).parent_path() / "libgcc_s.so.1";
  LOCKSTEP_RETURN_IF_ERROR(Link(file, folder));
  return PathExists(beside) ? Link(beside, folder) : absl::OkStatus();
}

absl::Status LinkLibraries(const CudaLibraries& libraries,
                           const std::string& folder) {
  for (const CudaLibraries::Found& each : libraries.found) {
    const std::string stem = each.name.substr(0, each.name.find('.'));
    for (const std::string& file : EntriesOf(each.folder, stem)) {
      LOCKSTEP_RETURN_IF_ERROR(Link(file, folder));
    }
  }
  return absl::OkStatus();
}

std::string FindProgram(absl::string_view name) {
  for (const std::string& folder : SplitPathList(Variable("PATH"))) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0 && fs::is_regular_file(file)) {
      return file;
    }
  }
  return "";
}

std::string FindComputeSanitizer() {
  const std::string on_path = FindProgram("compute-sanitizer");
  if (!on_path.empty()) return on_path;
  for (const std::string& home : ToolkitHomes()) {
    for (const char* folder : {"/bin", "/compute-sanitizer"}) {
      const std::string file = absl::StrCat(home, folder, "/compute-sanitizer");
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return "";
}

Torch FindTorch() {
  Torch torch = {.python = "", .version = "there is no python3 on PATH"};
  for (const std::string& python : PythonsOnPath()) {
    const SubprocessResult said = RunPython(
        python,
        "import torch\n"
        "assert torch.cuda.is_available(), 'it sees no GPU'\n"
        "print(torch.__version__, 'CUDA', torch.version.cuda, 'cuDNN',\n"
        "      torch.backends.cudnn.version(), 'NCCL',\n"
        "      '.'.join(map(str, torch.cuda.nccl.version())))\n",
        absl::Minutes(3));  // From a network's disk, the first time.
    const std::vector<std::string> lines = absl::StrSplit(
        said.exit_status == 0 ? said.out : said.err, '\n', absl::SkipEmpty());
    const std::string last =
        lines.empty() ? DescribeEnd(said.exit_status) : lines.back();
    if (said.exit_status == 0) return {.python = python, .version = last};
    torch.version = absl::StrCat(python, ": ", last);
  }
  return torch;
}

}  // namespace lockstep::gpu_bundle
