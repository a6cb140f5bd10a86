#!/usr/bin/env bash
# with_gpu COMMAND ARGS...: runs a test once it has a GPU to itself.
#
# Bazel runs every test of --config=cuda under this script (--run_under). The
# variable LOCKSTEP_GPUS says what a test needs; lockstep_cc_test sets it from
# the test's tags: 1 for `gpu`, all for `multigpu`. A test without it runs at
# once. The script sets CUDA_VISIBLE_DEVICES to the UUIDs of the test's GPUs.
#
# Each GPU has a lock: a file in /tmp that every Bazel and every user of this
# host locks. LOCKSTEP_GPU_LOCKS names another folder. The kernel holds the lock
# as long as the test, or a process that the test left behind, lives. Nothing
# needs cleaning up.
set -euo pipefail

case ${LOCKSTEP_GPUS:-} in
  "") exec "$@" ;;
  1 | all) ;;
  *)
    echo "with_gpu: LOCKSTEP_GPUS: '${LOCKSTEP_GPUS}' is neither 1 nor all" >&2
    exit 2
    ;;
esac

# Prints the UUIDs of this host's GPUs, in the order of the PCI bus. nvidia-smi
# writes its error messages to standard output too, so grep keeps only UUIDs.
host_gpus() {
  {
    nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null ||
      sed -n 's/^GPU UUID:[[:space:]]*//p' \
        /proc/driver/nvidia/gpus/*/information 2>/dev/null
  } | grep -E '^(GPU|MIG)-' || true
}

# Prints the GPUs that may be used. CUDA_VISIBLE_DEVICES lists positions in the
# order of host_gpus, or UUIDs (also of parts of a GPU). The list ends at the
# first position without a GPU.
usable_gpus() {
  local uuids place places
  mapfile -t uuids < <(host_gpus)
  if [[ -z ${CUDA_VISIBLE_DEVICES+set} ]]; then
    [[ ${#uuids[@]} -eq 0 ]] || printf '%s\n' "${uuids[@]}"
    return
  fi
  IFS=, read -r -a places <<< "${CUDA_VISIBLE_DEVICES}"
  for place in "${places[@]}"; do
    if [[ ${place} =~ ^[0-9]+$ ]]; then
      place=${uuids[10#${place}]:-}
    fi
    [[ ${place} == ?*-* ]] || break
    echo "${place}"
  done
}

# open_lock NAME: leaves in `fd` a descriptor that can be locked. One user's
# file serves all users, because reading permission is enough to lock it. If the
# file cannot be made, another process has just made it.
folder=${LOCKSTEP_GPU_LOCKS:-/tmp}
open_lock() {
  local file=${folder}/lockstep-gpu-$1.lock
  [[ -e ${file} ]] || (umask 022 && : >> "${file}") 2>/dev/null || true
  exec {fd}< "${file}"
}

mapfile -t gpus < <(usable_gpus)
if [[ ${#gpus[@]} -eq 0 ]]; then
  # There is no GPU, or GPUs cannot be listed. The test reports which.
  open_lock unknown
  flock "${fd}"
  exec "$@"
fi

# A test that waits for several GPUs holds the queue meanwhile. Otherwise tests
# that need one GPU could overtake it forever. A test that needs one GPU holds
# the queue only while it looks.
open_lock queue
queue=${fd}
if [[ ${LOCKSTEP_GPUS} == all ]]; then
  flock "${queue}"
  mine=$(IFS=,; echo "${gpus[*]}")
  for gpu in "${gpus[@]}"; do
    open_lock "${gpu}"
    flock "${fd}"
  done
else
  mine=
  while [[ -z ${mine} ]]; do
    flock "${queue}"
    for gpu in "${gpus[@]}"; do
      open_lock "${gpu}"
      if flock -n "${fd}"; then
        mine=${gpu}
        break
      fi
      exec {fd}<&-
    done
    flock --unlock "${queue}"
    [[ -n ${mine} ]] || sleep 0.1
  done
fi
exec {queue}<&-
CUDA_VISIBLE_DEVICES=${mine} exec "$@"
