"""The Python side of protocol_files_test.cc: python_agreement.py CASE OUTPUT."""
import json
import os
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lockstep_protocol


def main():
    case_folder, output_folder = sys.argv[1:]
    case = lockstep_protocol.read_case(case_folder, output_folder)
    with open(os.path.join(case_folder, "case.json"), encoding="utf-8") as file:
        keys = json.load(file)
    with open(os.path.join(output_folder, "read.json"), "w", encoding="utf-8") as file:
        json.dump({key: getattr(case, key) for key in keys}, file)
    types = lockstep_protocol.read_safetensors(os.path.join(case_folder, "types"))
    for name, tensors in {"weights": case.weights, "types": types}.items():
        lockstep_protocol.write_safetensors(os.path.join(output_folder, name), tensors)

    out = lockstep_protocol.Output(case, 1, 3, software='numpy é "1"')
    for step, loss in enumerate([0.1, float("nan"), float("inf"), float("-inf"), None, 1e-300, 7]):
        out.step(step, [] if loss is None else np.arange(step, 2 * step), loss)
    out.gradients(1, {"W1": np.float32([[0.5, -0.0], [np.nan, 3e38]])})
    out.state(12, {"W1": np.float64([[1, 2], [3, 4]])}, {"bn.num_batches_tracked": np.int64(9)})
    out.evaluation([4, 5], np.float32(0.5), float("nan"), 6)
    out.write()

    lockstep_protocol.Output(case, 2, 3, software="").unsupported('there is no "bfloat16", é\n')


main()
