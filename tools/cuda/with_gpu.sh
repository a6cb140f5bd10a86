#!/usr/bin/env bash
# with_gpu COMMAND ARGS...: runs a test once it has a GPU to itself.
#
# Bazel runs every test of --config=cuda under it (--run_under). What a test
# needs stands in LOCKSTEP_GPUS, which lockstep_cc_test sets from the test's
# tags: 1 for `gpu`, all for `multigpu`; a test without it runs at once. The
# test then sees in CUDA_VISIBLE_DEVICES the GPUs that it has, by UUID.
#
# A lock per GPU, a file in /tmp that every Bazel and every user of this host
# locks; LOCKSTEP_GPU_LOCKS names another folder. The kernel holds it for as long
# as the test, or a process that the test has left, lives: nothing to clean up.
set -euo pipefail

case ${LOCKSTEP_GPUS:-} in
  "") exec "$@" ;;
  1 | all) ;;
  *)
    echo "with_gpu: LOCKSTEP_GPUS: '${LOCKSTEP_GPUS}' is neither 1 nor all" >&2
    exit 2
    ;;
esac

# The UUIDs of this host's GPUs, in the order of the PCI bus. nvidia-smi says on
# its standard output also why it fails.
host_gpus() {
  {
    nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null ||
      sed -n 's/^GPU UUID:[[:space:]]*//p' \
        /proc/driver/nvidia/gpus/*/information 2>/dev/null
  } | grep -E '^(GPU|MIG)-' || true
}

# Those of them that may be used: CUDA_VISIBLE_DEVICES holds places in that
# order, or UUIDs (of parts of a GPU too), and ends at the first place that is
# not there.
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

# open_lock NAME: leaves in `fd` a descriptor that can be locked. One user's file
# serves all: to lock it, reading is enough. Who cannot make it was overtaken.
folder=${LOCKSTEP_GPU_LOCKS:-/tmp}
open_lock() {
  local file=${folder}/lockstep-gpu-$1.lock
  [[ -e ${file} ]] || (umask 022 && : >> "${file}") 2>/dev/null || true
  exec {fd}< "${file}"
}

mapfile -t gpus < <(usable_gpus)
if [[ ${#gpus[@]} -eq 0 ]]; then
  # None, or none that can be told apart: the test says which.
  open_lock unknown
  flock "${fd}"
  exec "$@"
fi

# Who waits for several GPUs holds the queue meanwhile, so as not to be overtaken
# for ever by those that need one, of which each lets the next look too.
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
