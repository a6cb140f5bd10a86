#!/usr/bin/env bash
# bare_root_test.sh BUNDLE.tar.xz: tests the bundle in an empty root with only a
# shell and the C library. Its programs find all libraries except NVIDIA's, and
# run.sh says that there is no GPU.
set -uo pipefail

bundle=${PWD}/$1
root=$(mktemp -d "${TEST_TMPDIR:-/tmp}/bare_root.XXXXXX")
trap 'rm -rf "${root}"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

tar -C "${root}" -xf "${bundle}"

# If user namespaces are allowed, the programs see only this root. Otherwise
# they see an empty environment, and this host's C library.
in_root() { # in_root NAME=VALUE... COMMAND...
  unshare --user --map-root-user chroot "${root}" /bin/sh -c \
    'for word; do
       case $word in
         *=*) export "$word"; shift ;;
         *) break ;;
       esac
     done
     exec "$@"' sh "$@"
}
here=
if unshare --user --map-root-user chroot / true 2>/dev/null; then
  # Copies the shell, and the C library with its loader, to their paths on this
  # host.
  mapfile -t files < <(
    for file in /bin/sh "${root}"/gpu_bundle/bin/*; do ldd "${file}"; done |
      grep -oE '/[^ ]*/(ld-linux|lib(c|m|dl|pthread|rt|resolv)\.so)[^ ]*' |
      sort -u)
  for file in /bin/sh "${files[@]}"; do
    mkdir -p "${root}${file%/*}"
    cp -L "${file}" "${root}${file}"
  done
else
  echo "no user namespaces: in an empty environment instead"
  here=${root}
  in_root() { env -i "$@"; }
fi
bundle_root=${here}/gpu_bundle

# Prints the libraries that the loader does not find for each program, except
# NVIDIA's.
not_found() {
  local program
  for program in "${root}"/gpu_bundle/bin/*; do
    in_root LD_TRACE_LOADED_OBJECTS=1 LD_LIBRARY_PATH="${bundle_root}/lib" \
      "${bundle_root}/bin/${program##*/}" 2>&1 |
      sed -n "s/ => not found/ of ${program##*/}/p"
  done | grep -vE '^\s*lib(cudart|nccl|cudnn|cublas|cublasLt)\.so'
}
missing=$(not_found)
[[ -z ${missing} ]] || fail "not found: ${missing}"

# The manifest must name the functions that NVIDIA's libraries need to have.
if grep -q '"libcudart' "${root}/gpu_bundle/manifest.json"; then
  grep -q '"cudaGetDeviceCount"' "${root}/gpu_bundle/manifest.json" ||
    fail "the manifest does not name the functions of NVIDIA's libraries"
fi
# An NCCL before 2.28 lacks this function, and programs must start with it.
if grep -q '"ncclTeamLsa"' "${root}/gpu_bundle/manifest.json"; then
  fail "the programs do not start with an NCCL before 2.28"
fi

# Programs that need none of those libraries start.
for program in train allreduce; do
  in_root LD_LIBRARY_PATH="${bundle_root}/lib" \
    "${bundle_root}/bin/${program}" --help > "${root}/help" 2>&1 ||
    fail "${program} --help: $(head -3 "${root}/help")"
done

# run_sh STATUS TEXT FLAGS...: expects one line that begins with TEXT, and the
# status.
run_sh() {
  local want=$1 text=$2 status=0
  shift 2
  in_root "${bundle_root}/run.sh" "$@" > "${root}/out" 2> "${root}/error" ||
    status=$?
  [[ ${status} -eq ${want} && ! -s ${root}/out &&
    $(wc -l < "${root}/error") -eq 1 && $(< "${root}/error") == "${text}"* ]] ||
    fail "run.sh $*: status ${status}: $(cat "${root}/out" "${root}/error")"
}
run_sh 2 "run.sh: --suite: 'some' is not one of correct" --suite=some
if [[ -z ${here} || ! -e /dev/nvidiactl ]]; then
  run_sh 3 "run.sh: no GPU: " --suite=all --budget=60 --out=/out
fi

# The controls. The host's library does not replace a broken library of the
# bundle. A library that is absent from the bundle is reported, if the host's is
# hidden.
library=${root}/gpu_bundle/lib/libexpat.so.1
[[ -s ${library} ]] || fail "no libexpat.so.1 in lib/, and so no control"
cp "${library}" "${root}/kept"
: > "${library}"
in_root "${bundle_root}/run.sh" > "${root}/out" 2>&1
[[ $? -eq 127 && $(< "${root}/out") == *"libexpat.so.1: file too short"* ]] ||
  fail "with a broken library run.sh says: $(< "${root}/out")"
rm "${library}"
if [[ -z ${here} ]]; then
  [[ $(not_found) == *"libexpat.so.1 of run_stages"* ]] ||
    fail "without a library of run_stages: '$(not_found)'"
fi
mv "${root}/kept" "${library}"

# With an older C library the programs do not start, and run.sh starts them with
# the bundle's. Its shell has a C library of its own.
if [[ -z ${here} ]]; then
  mkdir "${root}/of_shell"
  for file in "${files[@]}"; do
    cp -L "${file}" "${root}/of_shell/"
    [[ ${file} != */libc.so.6 ]] ||
      sed -i 's/GLIBC_2\.34\x00/GLIBC_2.94\x00/g' "${root}${file}"
  done
  in_root() {
    unshare --user --map-root-user chroot "${root}" \
      /of_shell/ld-linux-x86-64.so.2 --library-path /of_shell /bin/sh "$@"
  }
  in_root -c "LD_LIBRARY_PATH=${bundle_root}/lib ${bundle_root}/bin/train --help" \
    > "${root}/out" 2>&1
  [[ $(< "${root}/out") == *"version \`GLIBC_2.34' not found"* ]] ||
    fail "an old C library starts train: $(head -3 "${root}/out")"
  run_sh 3 "run.sh: no GPU: " --suite=all --budget=60 --out=/out
  in_root -c "LD_LIBRARY_PATH=${bundle_root}/lib ${bundle_root}/glibc/bin/train --help" \
    > "${root}/out" 2>&1 ||
    fail "train --help with an old C library: $(head -3 "${root}/out")"
  # Its ranks are processes, which start with the bundle's C library too.
  if unshare --user --map-root-user --mount --pid --fork --mount-proc true; then
    mkdir "${root}/proc" "${root}/tmp" "${root}/dev"
    touch "${root}/dev/null"
    unshare --user --map-root-user --mount --pid --fork \
      --mount-proc="${root}/proc" chroot "${root}" \
      /of_shell/ld-linux-x86-64.so.2 --library-path /of_shell /bin/sh -c \
      "LD_LIBRARY_PATH=${bundle_root}/lib exec ${bundle_root}/glibc/bin/allreduce \
       --max_bytes=4K --seconds=1" > "${root}/out" 2>&1 ||
      fail "allreduce with an old C library: $(tail -3 "${root}/out")"
  fi
fi

[[ ${failures} -eq 0 ]]
