"""Reads a case of Lockstep's conformance protocol and writes the output of a rank.

This one file needs numpy and the standard library: copy it beside your trainer. PROTOCOL.md defines
the terms.

    import lockstep_protocol

    case = lockstep_protocol.read_case()
    rank, world_size = lockstep_protocol.rank_and_world_size()
    out = lockstep_protocol.Output(case, rank, world_size, software="my trainer 1.0")
    if case.dtype == "bfloat16":
        out.unsupported("there is no bfloat16")
        sys.exit(0)
    model.load(case.weights)
    for step, (epoch, indices) in enumerate(batches(case, rank), start=1):
        loss, gradients = train(case.train_images[indices], case.train_labels[indices])
        out.step(epoch, indices, loss)
        if out.wants_gradients(step):
            out.gradients(step, gradients)
        update(gradients)
        if out.wants_state(step):
            out.state(step, parameters, buffers)
    out.write()

Tensors are numpy arrays. Output also accepts PyTorch tensors, on any device. A wrong file or
argument raises a ValueError, whose message is one line that names it.
"""

import json
import math
import os
import struct

import numpy as np

PROTOCOL = 1

_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items() if name != "BF16"}
_IMAGE = (1, 28, 28)
_LENET = {
    "W1": (20, 1, 3, 3),
    "b1": (20,),
    "W2": (50, 20, 5, 5),
    "b2": (50,),
    "W3": (800, 128),
    "b3": (128,),
    "W4": (128, 10),
    "b4": (10,),
}
_UNUSED = (4,)
_BATCH_NORMS = {"bn1": 20, "bn2": 50}
_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")


# The safetensors format: the header's length in 8 bytes, the header in JSON, the tensors' bytes.


def read_safetensors(path):
    """Reads the tensors in a file.

    Args:
      path: the file.

    Returns:
      A dict by name of arrays of any shape, writable and in the machine's byte order. A bfloat16
      tensor becomes float32, which represents it exactly.

    Raises:
      ValueError: the file cannot be read or is not safetensors. Names the file and the cause.
    """
    content = _read(path)
    header, data = _split(path, content)
    return {
        name: _tensor(path, name, entry, data)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def write_safetensors(path, tensors):
    """Writes a dict of arrays of any shape. The file appears only when it is complete.

    Raises:
      ValueError: the format does not support an array's type, or the file cannot be written.
    """
    header, parts, at = {}, [], 0
    for name, value in tensors.items():
        array = np.asarray(value)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype not in _NAMES:
            raise ValueError(f"{path}: {name}: cannot write the type {array.dtype}")
        part = array.tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(part)],
        }
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # Aligns the tensors.
    _write(path, struct.pack("<Q", len(text)) + text + b"".join(parts))


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _write(path, content):
    temporary = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _split(path, content):
    """Returns the header, which is checked to be an object, and the bytes after it."""
    if len(content) < 8:
        raise ValueError(
            f"{path}: not safetensors: {len(content)} bytes, and its header's length alone takes 8"
        )
    size = struct.unpack_from("<Q", content)[0]
    if size > len(content) - 8:
        raise ValueError(
            f"{path}: not safetensors: a header of {size} bytes in a file of {len(content)}"
        )
    header = _parse(path, content[8 : 8 + size], "its header")
    return header, memoryview(content)[8 + size :]


def _parse(path, text, what):
    """Returns a JSON object as a dict."""
    try:
        value = json.loads(text.decode("utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors.
        raise ValueError(
            f"{path}: {what} is not JSON: {str(error) or 'nested too deeply'}"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {what} is not a JSON object")
    return value


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of(value, accepts):
    return isinstance(value, list) and all(accepts(item) for item in value)


def _tensor(path, name, entry, data):
    """Returns one tensor from the bytes after the header."""
    where = f"{path}: {name}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: its entry is not a JSON object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{where}: the type {dtype!r} is not one of {', '.join(_DTYPES)}")
    if not _is_list_of(shape, _is_count):
        raise ValueError(f"{where}: its shape is not a list of sizes: {shape!r}")
    if (
        not _is_list_of(offsets, _is_count)
        or len(offsets) != 2
        or not offsets[0] <= offsets[1] <= len(data)
    ):
        raise ValueError(
            f"{where}: its data_offsets, {offsets!r}, are not two places in {len(data)} bytes"
        )
    need = math.prod(shape) * _DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != need:
        raise ValueError(
            f"{where}: {dtype} {shape} takes {need} bytes, its data_offsets are {offsets}"
        )
    try:
        array = np.frombuffer(data[offsets[0] : offsets[1]], _DTYPES[dtype]).reshape(shape)
    except (
        ValueError,
        OverflowError,
    ) as error:  # Too many dimensions, or a huge one beside a 0.
        raise ValueError(f"{where}: {dtype} {shape}: {error}") from error
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(array.dtype.newbyteorder("="))


# The case.


class Case:
    """The task of a trainer. Each key of case.json (PROTOCOL.md) is an attribute.

    Attributes:
      weights: a dict of arrays with every initial parameter and buffer.
      train_images, test_images: float32 [n, 1, 28, 28].
      train_labels, test_labels: int64 [n].
      output: the folder to write to.
      checkpoint: the folder for checkpoints, inside `output`. The trainer creates it.
    """

    def __init__(self, folder, output):
        self.output = output
        self.checkpoint = os.path.join(output, "checkpoint")
        self._path = os.path.join(folder, "case.json")
        self._set_keys(_parse(self._path, _read(self._path), "the case"))
        weights, data = (
            os.path.join(folder, name + ".safetensors") for name in ("weights", "data")
        )
        self.weights = read_safetensors(weights)
        self._check_weights(weights)
        tensors = read_safetensors(data)
        self.train_images, self.train_labels = _labelled_images(data, tensors, "train")
        self.test_images, self.test_labels = _labelled_images(data, tensors, "test")

    def batch_sizes_for(self, world_size):
        """Returns each rank's number of samples in a step. A single rank takes all samples."""
        if world_size == 1:
            return [sum(self.batch_sizes)]
        if len(self.batch_sizes) != world_size:
            raise ValueError(
                f"{self._path}: batch_sizes: {len(self.batch_sizes)} numbers for {world_size} ranks"
            )
        return list(self.batch_sizes)

    def _check_weights(self, path):
        """Checks names, shapes and types; in a user's own model, types and `unused` only."""
        shapes = {name: _UNUSED for name in self.unused}
        shapes.update(
            _model_shapes(self.model)
            or {name: array.shape for name, array in self.weights.items() if name not in shapes}
        )
        for name in self.frozen:
            if name not in shapes:
                raise ValueError(f"{self._path}: frozen: {self.model} has no {name}")
        for name in {**shapes, **self.weights}:
            have = self.weights[name].shape if name in self.weights else None
            if have != shapes.get(name):
                raise ValueError(
                    f"{path}: {name}: its shape is {have}, {self.model} wants {shapes.get(name)}"
                )
            want = np.int64 if name.endswith("num_batches_tracked") else np.float32
            if self.weights[name].dtype != want:
                raise ValueError(
                    f"{path}: {name} is {self.weights[name].dtype}, not {np.dtype(want)}"
                )

    def _set_keys(self, values):
        for key, (accepts, what) in _KEYS.items():
            if key not in values:
                raise ValueError(f"{self._path}: {key} is missing")
            if not accepts(values[key]):
                raise ValueError(
                    f"{self._path}: {key}: {json.dumps(values[key])[:80]} is not {what}"
                )
            setattr(self, key, values[key])


def _model_shapes(model):
    """Returns the shapes of parameters and buffers by name; None for a user's own model."""
    if model not in ("lenet", "lenet_bn"):
        return None
    shapes = dict(_LENET)
    if model == "lenet_bn":
        for layer, channels in _BATCH_NORMS.items():
            shapes.update({f"{layer}.{name}": (channels,) for name in _PER_CHANNEL})
            shapes[layer + ".num_batches_tracked"] = ()
    return shapes


def _is_name(value):
    return isinstance(value, str)


def _is_number(value):
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) < float("inf")
    )


def _is_bool(value):
    return isinstance(value, bool)


def _is_positive(value):
    return _is_count(value) and value > 0


def _is_optimizer(value):
    keys = ("learning_rate", "momentum", "weight_decay")
    return (
        isinstance(value, dict)
        and value.get("name") == "sgd"
        and all(_is_number(value.get(key)) for key in keys)
    )


def _is_write(value):
    keys = ("gradients", "state")
    return isinstance(value, dict) and all(
        _is_list_of(value.get(key), _is_positive) for key in keys
    )


def _is_batch_sizes(value):
    return _is_list_of(value, _is_count) and sum(value) > 0


def _one_of(*choices):
    kind = type(choices[0])  # 1 == True.
    return (lambda value: type(value) is kind and value in choices), "one of " + ", ".join(
        map(str, choices)
    )


def _names(value):
    return _is_list_of(value, _is_name)


_KEYS = {
    "protocol": _one_of(PROTOCOL),
    "name": (_is_name, "a string"),
    "model": (_is_name, "a string"),
    "batch_norm": _one_of("none", "sync", "local"),
    "unused": (_names, "a list of strings"),
    "frozen": (_names, "a list of strings"),
    "dtype": _one_of("float32", "bfloat16"),
    "optimizer": (_is_optimizer, "an optimizer: name sgd, learning_rate, momentum, weight_decay"),
    "batch_sizes": (_is_batch_sizes, "a list of sizes that are not all 0"),
    "accumulate": (_is_positive, "a positive whole number"),
    "epochs": (_is_count, "a whole number"),
    "shuffle": (_is_bool, "true or false"),
    "seed": (_is_count, "a whole number"),
    "resume": (_is_bool, "true or false"),
    "stop_after": (_is_count, "a whole number"),
    "evaluate": (_is_bool, "true or false"),
    "write": (_is_write, "an object of two lists of steps, gradients and state"),
}


def _labelled_images(path, tensors, part):
    images, labels = (tensors.get(f"{part}.{what}") for what in ("images", "labels"))
    if images is None or labels is None:
        raise ValueError(f"{path}: {part}.images or {part}.labels is missing")
    if images.dtype != np.float32 or images.shape[1:] != _IMAGE:
        raise ValueError(
            f"{path}: {part}.images is {images.dtype} {list(images.shape)}, "
            "not float32 [n, 1, 28, 28]"
        )
    if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{path}: {part}.labels is {labels.dtype} {list(labels.shape)}, "
            f"not int64 [{images.shape[0]}]"
        )
    return images, labels


def read_case(folder=None, output=None):
    """Reads the case in `folder`; the trainer writes to `output`.

    Args:
      folder: the default is the environment variable LOCKSTEP_CASE.
      output: the default is the environment variable LOCKSTEP_OUTPUT.

    Raises:
      ValueError: a variable is not set, or a file is missing or wrong. Names it and the cause.
    """
    return Case(folder or _variable("LOCKSTEP_CASE"), output or _variable("LOCKSTEP_OUTPUT"))


# The variables that torchrun, Open MPI's mpirun, and mpirun of MPICH and its relatives set.
_TORCHRUN = ("RANK", "WORLD_SIZE")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_MPICH = ("PMI_RANK", "PMI_SIZE")


def _slurm():
    """Returns srun's variables. If set, the step's number of tasks is used, not the job's."""
    step = "SLURM_STEP_NUM_TASKS"
    return ("SLURM_PROCID", step if step in os.environ else "SLURM_NTASKS")


def _is_slurm_task():
    """Returns whether srun started this process.

    Slurm's batch and interactive shells have step numbers at the upper end of 32 bits.
    """
    step = os.environ.get("SLURM_STEP_ID")
    if step is None or "SLURM_PROCID" not in os.environ:
        return False
    return not (step.isdecimal() and 0xFFFFFFF0 <= int(step) <= 0xFFFFFFFF)


def _is_pmi_of_slurm():
    """Returns whether srun set the PMI_ variables, as it does for MPI programs."""
    return (
        "MPI_LOCALRANKID" not in os.environ
        and _is_slurm_task()
        and all(os.environ.get(a) == os.environ.get(b) for a, b in zip(_MPICH, _slurm()))
    )


def _rank_variables():
    """Returns the variables of the first launcher that has set any; torchrun's if none has.

    An inner launcher comes before an outer one: srun can start torchrun, but not the reverse.
    """
    launchers = [_TORCHRUN, _OPEN_MPI]
    if not _is_pmi_of_slurm():
        launchers.append(_MPICH)
    if _is_slurm_task():
        launchers.append(_slurm())
    set_here = (pair for pair in launchers if any(name in os.environ for name in pair))
    return next(set_here, _TORCHRUN)


def rank_and_world_size():
    """Returns RANK and WORLD_SIZE of the environment, or the values that mpirun or srun set.

    A shell inside a Slurm allocation is no rank, although Slurm's variables are set in it.

    Raises:
      ValueError: a variable is not set, or the two are not a rank and a number of ranks.
    """
    names = _rank_variables()
    who = "//conformance:check sets it, or the launcher in a command with {world_size}"
    rank, world_size = (_variable(name, who) for name in names)
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise ValueError(
            f"{names[0]}={rank} {names[1]}={world_size}: not a rank and a number of ranks"
        )
    return int(rank), int(world_size)


def _variable(name, who="//conformance:check sets it"):
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set in the environment; {who}")
    return value


# The output.


class Output:
    """The output of one rank, in memory until write().

    Copies its arguments, so the caller may change them later. Not thread safe.
    """

    def __init__(self, case, rank, world_size, software):
        """`software` is for the report: the trainer and its libraries, with versions."""
        self._case = case
        self._path = os.path.join(case.output, f"rank{rank}")
        self._rank = {"protocol": PROTOCOL, "rank": rank, "world_size": world_size}
        self._record = {"software": software, "steps": [], "evaluation": None}
        self._tensors = {}

    def wants_gradients(self, step):
        """Whether the case asks for the gradients of `step`, from 1, counted across a resume."""
        return step in self._case.write["gradients"]

    def wants_state(self, step):
        """Whether the case asks for parameters and buffers after `step`, from 1."""
        return step in self._case.write["state"]

    def step(self, epoch, indices, loss):
        """Records one step of this start.

        Args:
          epoch: from 0.
          indices: the positions of this rank's samples in the training data; a list or an array.
          loss: the mean over `indices`; None if there are none.
        """
        self._record["steps"].append(
            {"epoch": int(epoch), "indices": _integers(indices), "loss": _number(loss)}
        )

    def gradients(self, step, gradients):
        """Records the gradients that the optimizer uses in `step`.

        Args:
          step: from 1.
          gradients: a dict with the names and shapes of `case.weights`. A parameter without a
            gradient has None or no entry.
        """
        self._add(f"gradient.{step}/", gradients)

    def state(self, step, parameters, buffers):
        """Records parameters and buffers after `step`: dicts with the names in `case.weights`."""
        self._add(f"parameter.{step}/", parameters)
        self._add(f"buffer.{step}/", buffers)

    def evaluation(self, indices, loss, accuracy, count):
        """Records the evaluation after the last step.

        Args:
          indices: the positions of this rank's samples in the test data.
          loss, accuracy, count: the values that this rank reports for the whole test set.
        """
        self._record["evaluation"] = {
            "indices": _integers(indices),
            "loss": _number(loss),
            "accuracy": _number(accuracy),
            "count": int(count),
        }

    def write(self):
        """Writes the tensors and, last, the JSON.

        Raises:
          ValueError: a file cannot be written. Names it and the cause.
        """
        write_safetensors(self._path + ".safetensors", self._tensors)
        self._write_json(self._record)

    def unsupported(self, why):
        """Reports, instead of write(), that the trainer cannot run the case; then exit with 0."""
        self._write_json({"unsupported": str(why)})

    def _add(self, prefix, tensors):
        for name, value in tensors.items():
            if value is None:
                continue
            array = _array(value)
            if name not in self._case.weights:
                raise ValueError(
                    f"{prefix}{name}: the case has no parameter or buffer of this name"
                )
            if array.shape != self._case.weights[name].shape:
                raise ValueError(
                    f"{prefix}{name} has the shape {list(array.shape)}, not "
                    f"{list(self._case.weights[name].shape)} as in the case"
                )
            self._tensors[prefix + name] = array

    def _write_json(self, values):
        text = json.dumps({**self._rank, **values}, allow_nan=False)
        _write(self._path + ".json", text.encode() + b"\n")


def _array(value):
    """Copies an array or a PyTorch tensor. bfloat16, which numpy lacks, becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return np.array(value)


def _integers(values):
    return [int(value) for value in values]


def _number(value):
    """Returns a number for JSON. Numbers that JSON lacks become "nan", "inf" or "-inf"."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)
