#!/usr/bin/env bash
# Formats every C++ and CUDA source in git. With --check, prints the lines that
# are not formatted and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run --Werror) ;;
  *) echo "usage: tools/format.sh [--check]" >&2; exit 2 ;;
esac
git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' |
  xargs -0 --no-run-if-empty clang-format --style=file "${mode[@]}"
