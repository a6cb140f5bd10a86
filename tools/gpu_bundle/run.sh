#!/bin/sh
# Runs the bundle's stages on this host; --help says how. The script needs a
# shell and the C library, and uses only the shell's built-in commands.
case $0 in
  */*) bundle=${0%/*} ;;
  *) bundle=. ;;
esac
bundle=$(CDPATH='' cd -- "${bundle}" && pwd -P) || exit 1

# lib/ comes first, so that no library of the host replaces one that the
# binaries were linked with. lib/ contains neither the C library nor NVIDIA's
# libraries; run_stages adds the folders of NVIDIA's.
LOCKSTEP_BUNDLE=${bundle}
LOCKSTEP_HOST_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=${bundle}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
export LD_LIBRARY_PATH LOCKSTEP_BUNDLE LOCKSTEP_HOST_LIBRARY_PATH

# need_version TEXT NAME PREFIX: if the loader's TEXT says that the host lacks
# versions of the library NAME, says which one is needed, in one line, and ends.
need_version() {
  newest=
  rest=$1
  while :; do
    case ${rest} in
      *"version \`$3"*"' not found"*) ;;
      *) break ;;
    esac
    rest=${rest#*"version \`$3"}
    minor=${rest%%"'"*}
    minor=${minor%%.*}
    if [ -z "${newest}" ] || [ "${minor}" -gt "${newest}" ]; then
      newest=${minor}
    fi
  done
  if [ -n "${newest}" ]; then
    echo "run.sh: the programs need $2 ${4}${newest}, and this host's is older" >&2
    exit 1
  fi
}

# The loader's own message has a line for each version and each program. If the
# host's C library is too old, glibc/bin/ starts the programs with the bundle's.
if ! said=$("${bundle}/bin/run_stages" --help 2>&1); then
  case ${said} in
    *"version \`GLIBC_2."*"' not found"*)
      if [ -x "${bundle}/glibc/bin/run_stages" ]; then
        if ! said=$("${bundle}/glibc/bin/run_stages" --help 2>&1); then
          echo "run.sh: with the bundle's C library: ${said}" >&2
          exit 1
        fi
        LOCKSTEP_BUNDLE=${bundle}/glibc
        exec "${bundle}/glibc/bin/run_stages" "$@"
      fi
      ;;
  esac
  need_version "${said}" glibc GLIBC_2. 2.
  need_version "${said}" libstdc++ GLIBCXX_3.4. GLIBCXX_3.4.
fi
exec "${bundle}/bin/run_stages" "$@"
