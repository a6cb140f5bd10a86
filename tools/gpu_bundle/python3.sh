#!/bin/sh
# The host's Python, for programs of the bundle that start PyTorch: it brings
# libraries of its own, so it gets the host's LD_LIBRARY_PATH and not ours.
# run_stages names the Python; without it, none has PyTorch.
: "${LOCKSTEP_PYTHON:?no python3 has PyTorch}"
LD_LIBRARY_PATH=${LOCKSTEP_HOST_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "${LOCKSTEP_PYTHON}" "$@"
