"""Files as C++ strings, with nothing but the shell's own tools."""

_SCRIPT = """
guard=LOCKSTEP_$$(echo $$path | tr 'a-z/.' 'A-Z__')_
cat > $$header <<END
// Written by embed_text: the text of a file.
#ifndef $$guard
#define $$guard

#include "absl/strings/string_view.h"

namespace lockstep {

absl::string_view $$function();

}  // namespace lockstep

#endif  // $$guard
END
{
  echo '// Written by embed_text.'
  echo "#include \\"$$path\\""
  echo 'namespace lockstep {'
  echo 'static const unsigned char kText[] = {'
  od -An -v -tu1 $$file | sed -e 's/  *\\([0-9][0-9]*\\)/\\1,/g'
  echo '};'
  echo "absl::string_view $$function() {"
  echo '  return {reinterpret_cast<const char*>(kText), sizeof(kText)};'
  echo '}'
  echo '}  // namespace lockstep'
} > $$source
"""

def embed_text(name, src, function):
    """A cc_library whose header `name`.h declares absl::string_view function().

    Args:
      name: of the library and its header.
      src: label of the file, which must not be empty.
      function: the name of the function, in the namespace lockstep.
    """
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [name + ".h", name + ".cc"],
        cmd = "".join([
            "file=$<\n",
            "header=$(location %s.h)\n" % name,
            "source=$(location %s.cc)\n" % name,
            "function=%s\n" % function,
            "path=%s/%s.h\n" % (native.package_name(), name),
            _SCRIPT,
        ]),
    )
    native.cc_library(
        name = name,
        srcs = [name + ".cc"],
        hdrs = [name + ".h"],
        deps = ["@com_google_absl//absl/strings"],
    )
