#!/bin/sh
# Starts the host's Python for programs of the bundle that use PyTorch. PyTorch
# brings libraries of its own, so it gets the host's LD_LIBRARY_PATH and not the
# bundle's. run_stages sets LOCKSTEP_PYTHON, unless no python3 has PyTorch.
: "${LOCKSTEP_PYTHON:?no python3 has PyTorch}"
LD_LIBRARY_PATH=${LOCKSTEP_HOST_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "${LOCKSTEP_PYTHON}" "$@"
