#!/usr/bin/env bash
# Fails if a source other than base/process.cc signals processes itself: such a
# call with a pid of -1 would end every process of the user. SendSignal of
# base/process.h refuses such pids. The test reads the source tree, so Bazel
# runs it each time.
set -euo pipefail

# Calls of the kernel's functions, and calls of Python's functions on any
# process except the caller.
calls='(^|[^[:alnum:]_.>])(kill|killpg|tkill|tgkill|sigqueue|pidfd_send_signal) *\('
calls+='|SYS_(kill|tkill|tgkill|pidfd_send_signal|rt_sigqueueinfo)'
python_calls='os\.kill(pg)? *\('
own_process='os\.kill\(os\.getpid\(\)'

# find_calls ROOT: prints the lines of the tree that contain such a call.
find_calls() (
  cd "$1"
  grep -rnE "${calls}" --include='*.cc' --include='*.h' --include='*.cu' \
    --include='*.cuh' --exclude-dir='bazel-*' --exclude-dir=.git . |
    grep -v '^\./base/process\.cc:' || true
  grep -rnE "${python_calls}" --include='*.py' --exclude-dir='bazel-*' \
    --exclude-dir=.git . | grep -vE "${own_process}" || true
)

# The control: the test finds each planted call and ignores lines that only look
# like one.
planted=$(mktemp -d "${TEST_TMPDIR:-/tmp}/signal_calls.XXXXXX")
trap 'rm -rf "${planted}"' EXIT
mkdir "${planted}/base"
echo 'kill(pid, 0); // Allowed here.' > "${planted}/base/process.cc"
cat > "${planted}/planted.cc" <<'TEXT'
  kill(pids[0], SIGKILL);
  if (::kill (pid, 9)) return;
  killpg(group, SIGTERM);
  syscall(SYS_tgkill, a, b, c);
  rank.kill(); Skill(x); "kill -9 $PPID";
TEXT
echo 'os.killpg(group, 9)' > "${planted}/planted.py"
echo 'os.kill(os.getpid(), 9); process.kill()' > "${planted}/itself.py"
found=$(find_calls "${planted}" | wc -l)
if [[ ${found} -ne 5 ]]; then
  echo "found ${found} of 5 planted calls:"
  find_calls "${planted}"
  exit 1
fi

# LICENSE is beside this file in the source tree, or at the link that Bazel
# makes.
license=$(dirname "$0")/../LICENSE
if [[ ! -f ${license} ]]; then
  license=${TEST_SRCDIR:-$0.runfiles}/${TEST_WORKSPACE:-lockstep}/LICENSE
fi
root=$(dirname "$(realpath "${license}")")
if [[ ! -f ${root}/base/process.cc ]]; then
  echo "${root} is not the source tree"
  exit 1
fi
if [[ -n $(find_calls "${root}") ]]; then
  find_calls "${root}"
  echo "Use SendSignal or SendSignalToGroup of base/process.h."
  exit 1
fi
