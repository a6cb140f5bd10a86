// Starts a program of the bundle with the bundle's own C library, on a host
// whose C library is too old. This program is linked statically, so it runs
// there. The links glibc/bin/NAME lead to it, and it starts bin/NAME:
//
//   glibc/c_library/ld-linux-x86-64.so.2 --library-path ... bin/NAME ARGS...
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

namespace {

[[noreturn]] void Fail(const char* what, const char* why = strerror(errno)) {
  fprintf(stderr, "%s: %s\n", what, why);
  _exit(127);
}

// Returns the text, in memory that nothing frees.
template <typename... Args>
char* Format(const char* format, Args... args) {
  char* text = nullptr;
  if (asprintf(&text, format, args...) < 0) Fail("out of memory");
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  // The path by which the kernel was asked: .../glibc/bin/NAME.
  char* const path =
      Format("%s", reinterpret_cast<const char*>(getauxval(AT_EXECFN)));
  char* const slash = strrchr(path, '/');
  if (slash == nullptr) Fail(path, "started without a folder");
  *slash = '\0';
  const char* const name = slash + 1;
  char folder[PATH_MAX];  // .../glibc/bin
  if (realpath(*path == '\0' ? "/" : path, folder) == nullptr) Fail(path);
  char* const library = Format("%s/../c_library", folder);
  char* const program = Format("%s/../../bin/%s", folder, name);
  // /proc/self/exe will be the loader (OwnProgramPath in base/process.h).
  if (setenv("LOCKSTEP_PROGRAM", Format("%s/%s", folder, name), 1) != 0) {
    Fail("LOCKSTEP_PROGRAM");
  }
  // The loader's own folders are those of another distribution.
  const char* const given = getenv("LD_LIBRARY_PATH");
  char* const folders =
      Format("%s:%s%s/lib64:/usr/lib64", library, given == nullptr ? "" : given,
             given == nullptr || *given == '\0' ? "" : ":");
  char* const loader = Format("%s/ld-linux-x86-64.so.2", library);
  constexpr int kOwn = 6;
  auto** const words =
      static_cast<char**>(calloc(kOwn + argc + 1, sizeof(char*)));
  if (words == nullptr) Fail("out of memory");
  const char* const own[kOwn] = {loader,    "--library-path", folders,
                                 "--argv0", argv[0],          program};
  memcpy(words, own, sizeof(own));
  if (argc > 1) memcpy(words + kOwn, argv + 1, sizeof(char*) * (argc - 1));
  execv(loader, words);
  Fail(loader);
}
