#!/bin/sh
# Runs the bundle's stages on this host; --help says how. It needs a shell and
# the C library, and takes from the shell only what is built into it.
case $0 in
  */*) bundle=${0%/*} ;;
  *) bundle=. ;;
esac
bundle=$(CDPATH='' cd -- "${bundle}" && pwd -P) || exit 1

# lib/ comes first, so that no library of the host with the same name is taken
# for one that the binaries were linked with. It holds neither the C library nor
# any of NVIDIA's; run_stages adds the folders of those.
LOCKSTEP_BUNDLE=${bundle}
LOCKSTEP_HOST_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=${bundle}/lib${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}
export LD_LIBRARY_PATH LOCKSTEP_BUNDLE LOCKSTEP_HOST_LIBRARY_PATH
exec "${bundle}/bin/run_stages" "$@"
