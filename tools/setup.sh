#!/usr/bin/env bash
# Installs the distribution's packages that Lockstep needs, including Bazel.
# Nothing comes from elsewhere, except the tools of --ci that no distribution
# has. Running the script again changes nothing.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/setup.sh [--ci] [--dry-run] [--help]

Installs the packages that building, testing and running Lockstep needs, on
Debian 12 or Ubuntu 24.04 (or a later release of either). Needs root, or sudo
that asks for no password; otherwise it prints what it would install and exits
with status 1, or 0 if nothing is missing.

  --ci        also what .ci/run and fuzzing need: clang, its run-time
              libraries, clang-format, shellcheck; and, with pip, the tools of
              tools/requirements-ci.txt in ~/.cache/lockstep/venv. Without those
              (no network, say) it goes on, and the tests that need one are
              skipped. Delete that folder to have them fetched again.
  --dry-run   print what is missing and change nothing
  --help      this text

A CUDA toolkit is optional and is not installed: see tools/cuda/README.md.
TEXT
}

packages=(
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto
  bazel-skylib                  # Bazel and its rules
  g++ git                       # the compiler; `git clone`
  libabsl-dev libbenchmark-dev libgmock-dev libgtest-dev
  libdnnl-dev                   # convolution on the CPU
  libexpat1-dev                 # the results of tests, for their report
  libjpeg-dev libpng-dev        # the images of data sets
  libopenmpi-dev openmpi-bin    # ranks on many hosts, and mpirun
  libssl-dev                    # the token of the TCP rendezvous
  iproute2                      # hosts made of network namespaces, in tests
  nlohmann-json3-dev zlib1g-dev
  libjs-chart.js                # the charts of the HTML reports
  python3-matplotlib            # the curves of the SyncBN experiment
  dataset-fashion-mnist         # the default training data
)
ci_packages=(
  clang clang-format libclang-rt-dev
  python3-venv shellcheck       # the tools of requirements-ci.txt; scripts
  python3-yaml                  # the workflows of ci/; timm reads YAML too
)
# These packages are installed if the distribution has them. Targets that need a
# missing one are left out of the build.
optional_packages=(
  libgloo-dev                   # a peer in the all-reduce benchmark
  python3-torch                 # the default trainer of //conformance:check
  python3-torchvision           # networks to compare ours with
)

ci=false
dry_run=false
for argument in "$@"; do
  case "${argument}" in
    --ci) ci=true; packages+=("${ci_packages[@]}") ;;
    --dry-run) dry_run=true ;;
    --help) usage; exit 0 ;;
    *)
      echo "tools/setup.sh: unknown argument '${argument}' (see --help)" >&2
      exit 2
      ;;
  esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "tools/setup.sh: needs apt-get and dpkg-query (Debian or" \
    "Ubuntu); install by hand:" \
    "${packages[*]}" >&2
  exit 1
fi

is_installed() {
  [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Sets `missing`, and `unknown` to the optional packages that apt-get does not
# know. `unknown` packages do not count as missing.
find_missing() {
  missing=() unknown=()
  local package
  for package in "${packages[@]}"; do
    is_installed "${package}" || missing+=("${package}")
  done
  for package in "${optional_packages[@]}"; do
    if is_installed "${package}"; then continue; fi
    if apt-cache show "${package}" &>/dev/null; then
      missing+=("${package}")
    else
      unknown+=("${package}")
    fi
  done
}

install_packages() {
  local as_root=()
  find_missing
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "Everything is installed${unknown[*]:+ (not in this distribution: ${unknown[*]})}."
    return
  fi
  if "${dry_run}"; then
    echo "Would install: ${missing[*]}"
    return
  fi
  if [[ ${EUID} -ne 0 ]]; then
    if ! sudo -n true 2>/dev/null; then
      echo "Would install: ${missing[*]}"
      echo "tools/setup.sh: not root; run as root: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  find_missing  # apt-get may know optional packages only now.
  if [[ ${#unknown[@]} -gt 0 ]]; then
    echo "Not in this distribution: ${unknown[*]}"
  fi
  echo "Installing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# Makes the virtual environment of requirements-ci.txt, once. The stamp, which
# is written last, holds the requirements of the environment and the missing
# tools. No failure here ends the script: the tests of a missing tool are
# skipped.
make_venv() {
  local venv=~/.cache/lockstep/venv requirement absent=() tool
  local requirements
  requirements=$(dirname "$0")/requirements-ci.txt
  if [[ $(grep -v '^absent:' "${venv}/stamp" 2>/dev/null) == "$(<"${requirements}")" ]]; then
    echo "${venv} is made$(sed -n 's/^absent:/, without:/p' "${venv}/stamp")."
    return
  fi
  if "${dry_run}"; then
    echo "Would make ${venv} from ${requirements}"
    return
  fi
  rm -rf "${venv}"
  # timm needs the distribution's torch.
  if ! /usr/bin/python3 -m venv --system-site-packages "${venv}" &>/dev/null; then
    echo "No ${venv}: python3 -m venv fails; the tests that need it are skipped."
    rm -rf "${venv}"
    return
  fi
  # Tools are installed one by one, because some are built on arrival from
  # sources that are not reachable everywhere.
  while read -r requirement; do
    timeout 25 "${venv}/bin/pip" install -q --disable-pip-version-check \
      --no-deps --retries 0 --timeout 10 -r <(echo "${requirement}") \
      &>/dev/null </dev/null || absent+=("${requirement%% *}")
  done < <(grep -v '^#' "${requirements}")
  for tool in "${venv}"/lib/python3*/site-packages/nvidia/cu*/bin/*; do
    if [[ -x ${tool} ]]; then ln -sf "${tool}" "${venv}/bin/"; fi
  done
  { cat "${requirements}"; echo "absent: ${absent[*]:-none}"; } > "${venv}/stamp"
  echo "Made ${venv}${absent[*]:+, without: ${absent[*]} (the tests that need it are skipped)}."
}

install_packages
if "${ci}"; then make_venv; fi
