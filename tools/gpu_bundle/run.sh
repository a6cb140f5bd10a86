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
exec "${bundle}/bin/run_stages" "$@"
