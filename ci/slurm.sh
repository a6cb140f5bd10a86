#!/bin/sh
#SBATCH --job-name=lockstep
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time=01:30:00
#SBATCH --output=lockstep-%j.log
usage() {
  cat <<'TEXT'
usage: sbatch [SBATCH FLAGS] ci/slurm.sh BUNDLE.tar.xz [--out=DIR] [RUN FLAGS]

Unpacks the GPU bundle on each node of the job, on the node's own disk, and runs
it there once, on all CPUs of the node (Slurm's default is one of them) and all
GPUs that the job has on it. RUN FLAGS go to its run.sh:
--suite=correct|kernels|train|first|all, --budget=SECONDS. For example, on two nodes of
eight GPUs:

  bazel build --config=cuda //tools/gpu_bundle
  sbatch --nodes=2 --gpus-per-node=8 ci/slurm.sh \
      bazel-bin/tools/gpu_bundle/gpu_bundle.tar.xz --suite=correct

BUNDLE and DIR (default: lockstep-JOBID) have to be on a file system that all
nodes share. DIR/NODE then holds a node's results.json, junit.xml, log.txt, and
status. Exit status: 1 if anything was wrong on a node, or it left no status; else
3 if one has no GPU; else 0.
TEXT
}

case "${1:-}" in
  --help) usage; exit 0 ;;
  '' | -*)
    echo "slurm.sh: needs the bundle's path first (see --help)" >&2
    exit 2
    ;;
esac
bundle=$1
shift
if [ ! -r "${bundle}" ]; then
  echo "slurm.sh: no bundle '${bundle}' that can be read" >&2
  exit 2
fi
if [ -z "${SLURM_JOB_NUM_NODES:-}" ]; then
  echo "slurm.sh: not in a Slurm job: start it with sbatch (see --help)" >&2
  exit 2
fi
out=lockstep-${SLURM_JOB_ID}
for argument; do  # Takes --out from the flags, and leaves the others.
  shift
  case "${argument}" in
    --out=*) out=${argument#--out=} ;;
    *) set -- "$@" "${argument}" ;;
  esac
done
mkdir -p "${out}" && out=$(cd "${out}" && pwd) && rm -f "${out}"/*/status || exit 1

# The script of each node. It exits with 0, since its status is in a file.
# shellcheck disable=SC2016  # The nodes expand it.
on_a_node='
bundle=$1 out=$2/${SLURMD_NODENAME:-$(hostname)}
shift 2
mkdir -p "${out}"
# The first folder from which programs can be run: /tmp may be mounted noexec.
for folder in "${TMPDIR:-/tmp}" /dev/shm /var/tmp "${out}"; do
  work=$(mktemp -d "${folder}/lockstep.XXXXXX" 2>/dev/null) || continue
  printf "#!/bin/sh\n" > "${work}/try" && chmod +x "${work}/try" &&
    "${work}/try" 2>/dev/null && break
  rm -rf "${work}"
  work=
done
if [ -z "${work}" ]; then
  echo "no folder from which programs can be run" > "${out}/log.txt"
  echo 1 > "${out}/status"
  exit 0
fi
trap "rm -rf \"${work}\"" EXIT
if tar -xf "${bundle}" -C "${work}"; then
  "${work}/gpu_bundle/run.sh" --out="${out}" "$@"
else
  (exit 1)
fi > "${out}/log.txt" 2>&1
echo "$?" > "${out}/status"
'
# A task has one CPU by default, which the threads of NCCL and of a rank would
# share.
srun --nodes="${SLURM_JOB_NUM_NODES}" --ntasks="${SLURM_JOB_NUM_NODES}" \
  --ntasks-per-node=1 ${SLURM_CPUS_ON_NODE:+"--cpus-per-task=${SLURM_CPUS_ON_NODE}"} \
  --cpu-bind=none sh -c "${on_a_node}" sh "${bundle}" "${out}" "$@"

wrong=0 without=0 nodes=0
for status in "${out}"/*/status; do
  [ -e "${status}" ] || continue
  nodes=$((nodes + 1))
  node=$(basename "$(dirname "${status}")")
  case "$(cat "${status}")" in
    0) echo "${node}: all well" ;;
    3) echo "${node}: no GPU"; without=$((without + 1)) ;;
    *) echo "${node}: failed; the end of ${out}/${node}/log.txt:"
       tail -n 20 "${out}/${node}/log.txt"; wrong=$((wrong + 1)) ;;
  esac
done
missing=$((SLURM_JOB_NUM_NODES - nodes))
if [ "${missing}" -ne 0 ]; then echo "${missing} nodes left no status"; fi
if [ "${wrong}" -ne 0 ] || [ "${missing}" -ne 0 ]; then exit 1; fi
if [ "${without}" -ne 0 ]; then exit 3; fi
