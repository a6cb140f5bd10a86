#!/usr/bin/env bash
# Tests with_gpu on a host whose GPUs a false nvidia-smi lists. Two runs under
# with_gpu either meet (each is inside while the other is) or take turns.
set -uo pipefail

with_gpu=${PWD}/$1
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/with_gpu.XXXXXX")
trap 'rm -rf "${work}"' EXIT
export LOCKSTEP_GPU_LOCKS=${work}/locks PATH=${work}/bin:${PATH}
unset CUDA_VISIBLE_DEVICES
mkdir "${work}/bin" "${work}/locks"
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# host UUID...: sets the GPUs of the host from now on.
host() {
  printf '%s\n' '#!/bin/sh' "printf '%s\\n' $*" > "${work}/bin/nvidia-smi"
  chmod +x "${work}/bin/nvidia-smi"
}

# The command that runs under the lock: `visitor NAME OTHER TENTHS` records its
# GPU. It waits until OTHER is inside too, or gone, or TENTHS tenths of a second
# have passed.
cat > "${work}/visitor" <<'END'
#!/usr/bin/env bash
cd "$(dirname "$0")" || exit
: > "inside.$1"
until [[ -e started.$2 ]]; do sleep 0.02; done
for ((i = 0; i < $3 * 5; i++)); do
  [[ ! -e inside.$2 && ! -e said.$2 ]] || break
  sleep 0.02
done
[[ -e inside.$2 ]] && met=met || met=alone
echo "${met} ${CUDA_VISIBLE_DEVICES-unset}" > "said.$1"
# If both visitors are inside, OTHER may not have looked yet.
while [[ ${met} == met && ! -e said.$2 ]]; do sleep 0.02; done
rm "inside.$1"
END
chmod +x "${work}/visitor"

# meet TENTHS GPUS_OF_A GPUS_OF_B COMMAND...: runs both visitors at once, each
# under the command. Leaves in `a` and `b` what they recorded.
meet() {
  local tenths=$1 of_a=$2 of_b=$3
  shift 3
  rm -f "${work}"/{said,inside,started}.*
  start() {
    LOCKSTEP_GPUS=$1 bash -c ': > "$0"; exec "$@"' "${work}/started.$2" \
      "${@:4}" "${work}/visitor" "$2" "$3" "${tenths}"
  }
  start "${of_a}" a b "$@" &
  start "${of_b}" b a "$@"
  wait
  a=$(< "${work}/said.a") b=$(< "${work}/said.b")
}

# Under the lock the visitors take turns. Without it (env) the overlap is seen.
host GPU-one
meet 3 1 1 "${with_gpu}"
[[ ${a} == "alone GPU-one" && ${b} == "alone GPU-one" ]] ||
  fail "one GPU, two tests: '${a}', '${b}'"
meet 100 1 1 env
[[ ${a} == "met unset" && ${b} == "met unset" ]] ||
  fail "the control without a lock: '${a}', '${b}'"

# Two GPUs serve two tests at once, one each.
host GPU-one GPU-two
meet 100 1 1 "${with_gpu}"
[[ "${a} ${b}" == "met GPU-one met GPU-two" ||
  "${a} ${b}" == "met GPU-two met GPU-one" ]] ||
  fail "two GPUs, two tests: '${a}', '${b}'"

# A test that needs all GPUs is alone, whatever the other test needs.
for other in 1 all; do
  meet 3 all "${other}" "${with_gpu}"
  [[ ${a} == "alone GPU-one,GPU-two" && ${b} == "alone GPU-"* ]] ||
    fail "all GPUs beside ${other}: '${a}', '${b}'"
done

# A test that needs no GPU does not wait and gets no GPU.
meet 100 all "" "${with_gpu}"
[[ ${a} == "met GPU-one,GPU-two" && ${b} == "met unset" ]] ||
  fail "a test without a GPU: '${a}', '${b}'"

# CUDA_VISIBLE_DEVICES limits the GPUs that are used.
for case in 1=GPU-two 0,1=GPU-one,GPU-two 1,-1,0=GPU-two 1,7,0=GPU-two \
  MIG-part=MIG-part GPU-two,0=GPU-two,GPU-one; do
  got=$(CUDA_VISIBLE_DEVICES=${case%%=*} LOCKSTEP_GPUS=all \
    "${with_gpu}" printenv CUDA_VISIBLE_DEVICES)
  [[ ${got} == "${case#*=}" ]] || fail "CUDA_VISIBLE_DEVICES=${case}: '${got}'"
done

# GPUs that cannot be listed count as one GPU.
printf '#!/bin/sh\necho Failed to initialize NVML: Version/mismatch\nexit 18\n' \
  > "${work}/bin/nvidia-smi"
if [[ ! -e /proc/driver/nvidia/gpus ]]; then
  meet 3 1 1 "${with_gpu}"
  [[ ${a} == "alone unset" && ${b} == "alone unset" ]] ||
    fail "GPUs that cannot be listed: '${a}', '${b}'"
fi

# A killed test frees its GPU. The exit status is that of the command.
host GPU-one
LOCKSTEP_GPUS=1 "${with_gpu}" bash -c ': > "$0"; exec sleep 600' \
  "${work}/holds" &
holder=$!
for ((i = 0; i < 200; i++)); do
  [[ ! -e ${work}/holds ]] || break
  sleep 0.05
done
LOCKSTEP_GPUS=1 timeout 0.5 "${with_gpu}" true &&
  fail "the holder's GPU was given away"
# A test that waits for one GPU does not keep others from another GPU.
host GPU-one GPU-two
CUDA_VISIBLE_DEVICES=0 LOCKSTEP_GPUS=1 "${with_gpu}" true &
waiter=$!
sleep 0.2
LOCKSTEP_GPUS=1 timeout 10 "${with_gpu}" true ||
  fail "the queue waits for the holder"
kill "${waiter}"
host GPU-one
kill -KILL "${holder}"
wait "${holder}" 2>/dev/null
LOCKSTEP_GPUS=1 timeout 10 "${with_gpu}" sh -c 'exit 7'
[[ $? -eq 7 ]] || fail "a killed holder keeps its GPU"

# Another user can lock the files that this user has made.
rm "${work}"/locks/*
(umask 077 && LOCKSTEP_GPUS=1 "${with_gpu}" true)
[[ $(stat -c %a "${work}"/locks/* | sort -u) == 644 ]] ||
  fail "modes of the locks: $(ls -l "${work}/locks")"

LOCKSTEP_GPUS=some "${with_gpu}" true 2> "${work}/error"
[[ $? -eq 2 && $(< "${work}/error") == "with_gpu: LOCKSTEP_GPUS: 'some' "* ]] ||
  fail "LOCKSTEP_GPUS=some: $(< "${work}/error")"

[[ ${failures} -eq 0 ]]
