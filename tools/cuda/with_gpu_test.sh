#!/usr/bin/env bash
# with_gpu on a host whose GPUs are what a false nvidia-smi says. Two runs under
# it either meet, each inside while the other is, or take turns.
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

# host UUID...: the GPUs that there are from now on.
host() {
  printf '%s\n' '#!/bin/sh' "printf '%s\\n' $*" > "${work}/bin/nvidia-smi"
  chmod +x "${work}/bin/nvidia-smi"
}

# The command that runs under the lock: `visitor NAME OTHER SECONDS` says which
# GPU it has, and waits until OTHER is inside too, or for so long.
cat > "${work}/visitor" <<'END'
#!/usr/bin/env bash
inside=$(dirname "$0")/inside
mkdir -p "${inside}"
: > "${inside}/$1"
for ((i = 0; i < $3 * 20; i++)); do
  [[ ! -e ${inside}/$2 ]] || break
  sleep 0.05
done
[[ -e ${inside}/$2 ]] && met=met || met=alone
echo "${met} ${CUDA_VISIBLE_DEVICES-unset}" > "$(dirname "$0")/said.$1"
# Where both are inside, the other may not have looked yet.
for ((i = 0; i < $3 * 20; i++)); do
  [[ ${met} == met && ! -e $(dirname "$0")/said.$2 ]] || break
  sleep 0.05
done
rm "${inside}/$1"
END
chmod +x "${work}/visitor"

# meet SECONDS GPUS_OF_A GPUS_OF_B COMMAND...: both visitors at once, each under
# the command. Leaves in `a` and `b` what they said.
meet() {
  local seconds=$1 of_a=$2 of_b=$3
  shift 3
  rm -rf "${work}"/said.* "${work}/inside"
  LOCKSTEP_GPUS=${of_a} "$@" "${work}/visitor" a b "${seconds}" &
  LOCKSTEP_GPUS=${of_b} "$@" "${work}/visitor" b a "${seconds}"
  wait
  a=$(< "${work}/said.a") b=$(< "${work}/said.b")
}

# Under the lock they take turns; without it (env) the overlap is seen.
host GPU-one
meet 1 1 1 "${with_gpu}"
[[ ${a} == "alone GPU-one" && ${b} == "alone GPU-one" ]] ||
  fail "one GPU, two tests: '${a}', '${b}'"
meet 10 1 1 env
[[ ${a} == "met unset" && ${b} == "met unset" ]] ||
  fail "the control without a lock: '${a}', '${b}'"

# Two GPUs serve two at once, each its own.
host GPU-one GPU-two
meet 10 1 1 "${with_gpu}"
[[ "${a} ${b}" == "met GPU-one met GPU-two" ||
  "${a} ${b}" == "met GPU-two met GPU-one" ]] ||
  fail "two GPUs, two tests: '${a}', '${b}'"

# One that needs all of them is alone, with either kind of other.
for other in 1 all; do
  meet 1 all "${other}" "${with_gpu}"
  [[ ${a} == "alone GPU-one,GPU-two" && ${b} == "alone GPU-"* ]] ||
    fail "all GPUs beside ${other}: '${a}', '${b}'"
done

# What needs none waits for nobody, and is given nothing.
meet 10 all "" "${with_gpu}"
[[ ${a} == "met GPU-one,GPU-two" && ${b} == "met unset" ]] ||
  fail "a test without a GPU: '${a}', '${b}'"

# Of those that CUDA_VISIBLE_DEVICES leaves.
for case in 1=GPU-two 0,1=GPU-one,GPU-two 1,-1,0=GPU-two 1,7,0=GPU-two \
  MIG-part=MIG-part GPU-two,0=GPU-two,GPU-one; do
  got=$(CUDA_VISIBLE_DEVICES=${case%%=*} LOCKSTEP_GPUS=all \
    "${with_gpu}" printenv CUDA_VISIBLE_DEVICES)
  [[ ${got} == "${case#*=}" ]] || fail "CUDA_VISIBLE_DEVICES=${case}: '${got}'"
done

# GPUs that cannot be listed are one.
printf '#!/bin/sh\nexit 9\n' > "${work}/bin/nvidia-smi"
if [[ ! -e /proc/driver/nvidia/gpus ]]; then
  meet 1 1 1 "${with_gpu}"
  [[ ${a} == "alone unset" && ${b} == "alone unset" ]] ||
    fail "GPUs that cannot be listed: '${a}', '${b}'"
fi

# A test that is killed frees its GPU; its exit status is the command's.
host GPU-one
LOCKSTEP_GPUS=1 "${with_gpu}" bash -c ': > "$0"; exec sleep 600' \
  "${work}/holds" &
holder=$!
for ((i = 0; i < 200; i++)); do
  [[ ! -e ${work}/holds ]] || break
  sleep 0.05
done
LOCKSTEP_GPUS=1 timeout 1 "${with_gpu}" true &&
  fail "the holder's GPU was given away"
kill -KILL "${holder}"
wait "${holder}" 2>/dev/null
LOCKSTEP_GPUS=1 timeout 10 "${with_gpu}" sh -c 'exit 7'
[[ $? -eq 7 ]] || fail "a killed holder keeps its GPU"

LOCKSTEP_GPUS=some "${with_gpu}" true 2> "${work}/error"
[[ $? -eq 2 && $(< "${work}/error") == "with_gpu: LOCKSTEP_GPUS: 'some' "* ]] ||
  fail "LOCKSTEP_GPUS=some: $(< "${work}/error")"

[[ ${failures} -eq 0 ]]
