"""Takes training steps in PyTorch, for the command `step` to time.

Builds the network from the operations of our own network's description, with
PyTorch's function for each: the one that torchvision's and timm's modules call.

The lines of standard input, and the answers:
  load THREADS TYPE MODE nchw|nhwc cpu|cuda FOLDER               loaded
  first     step; its gradients go to the folder                 loss LOSS
  memory    the peak of memory in steps on a CPU, without weights
                                                                 memory BYTES
  time SECONDS   steps for about this time, at least one         timed SECONDS...
                 (on a GPU one more, the first, does not count)
  ddp RANK WORLD_SIZE LEARNING_RATE IMAGES STEPS
                 steps as a rank of DistributedDataParallel, on the first images
                 of the batch       stepped SAME_PARAMETERS LOSS SECONDS...
If a line fails, the answer is "cannot" and the reason, in one line.

TYPE   float32
       bfloat16   autocast
       tf32       float32, and products may round their factors to TF32 (cuda)
       float16    autocast, with a GradScaler (cuda)
MODE   eager
       compile    torch.compile; on a GPU it also times kernels to choose them,
                  as cuDNN does for eager. CUDA graphs are left to `graph`
       graph      a CUDA graph of the eager step (cuda)

A graph holds the forward and backward passes and the update. A float16 step has
its update outside, because GradScaler.step() reads on the host whether to skip
it: PyTorch's documentation captures the passes alone.
"""
import ctypes
import gc
import json
import mmap
import os
import struct
import sys
import time

LEARNING_RATE = 1e-4
# By type: that of autocast.
NARROW = {"float32": None, "tf32": None, "bfloat16": "bfloat16",
          "float16": "float16"}
MODES = ("eager", "compile", "graph")
COMMANDS = ("first", "memory", "time", "ddp")
WARM_UP_STEPS = 3  # Before a capture, as in PyTorch's documentation.
MOST_SCALES = 32  # Of a GradScaler, which begins with 2^16 and halves it.


def answer(*words):
    print("lockstep:", *words, flush=True)


def resident(key):
    """Returns the bytes that a line of /proc/self/status reports."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status
                    if line.startswith(key + ":"))


def open_tensors(torch, path):
    """Returns the tensors of a safetensors file, mapped to its memory, and its
    metadata."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    size, = struct.unpack("<Q", memory[:8])
    header = json.loads(memory[8:8 + size])
    metadata = header.pop("__metadata__", {})
    types = {"F32": (torch.float32, 4), "I32": (torch.int32, 4),
             "I64": (torch.int64, 8)}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype, item = types[entry["dtype"]]
        tensors[name] = torch.frombuffer(
            memory, dtype=dtype, offset=8 + size + begin,
            count=(end - begin) // item).view(entry["shape"])
    return tensors, metadata


def attention(torch, op, qkv):
    n, length, width = qkv.shape
    head = width // 3 // op["heads"]
    q, k, v = qkv.view(n, length, 3, op["heads"], head).permute(2, 0, 3, 1, 4)
    functional = torch.nn.functional
    if hasattr(functional, "scaled_dot_product_attention"):
        y = functional.scaled_dot_product_attention(q, k, v)
    else:
        y = ((q * head ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
    return y.transpose(1, 2).reshape(n, length, width // 3)


def batch_norm(torch, op, get, x, *added):
    get("batches").add_(1)
    y = torch.nn.functional.batch_norm(
        x, get("mean"), get("variance"), get("weight"), get("bias"),
        training=True, momentum=0.1, eps=op["epsilon"])
    for other in added:
        y += other
    return torch.relu_(y) if op["relu"] else y


def linear(torch, op, get, x):
    functional = torch.nn.functional
    if not op["per_position"]:
        x = x.flatten(1)
    if op["inputs_first"]:
        y = torch.addmm(get("bias"), x, get("weight"))
    else:
        y = functional.linear(x, get("weight"), get("bias"))
    return torch.relu_(y) if op["relu"] else y


def convolution(torch, op, get, x):
    y = torch.nn.functional.conv2d(x, get("weight"), get("bias"), op["stride"],
                                   op["padding"])
    return torch.relu_(y) if op["relu"] else y


def pool(torch, op, get, x):
    call = (torch.nn.functional.max_pool2d if op["maximum"]
            else torch.nn.functional.avg_pool2d)
    return call(x, op["kernel"], op["stride"], op["padding"])


def embed(torch, op, get, x):
    x = x.flatten(2).transpose(1, 2)
    first = get("class_token").expand(x.shape[0], -1, -1)
    return torch.cat((first, x), 1) + get("position")


KINDS = {
    "convolution": convolution,
    "linear": linear,
    "batch_norm": batch_norm,
    "pool": pool,
    "global_average_pool":
        lambda torch, op, get, x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
    "layer_norm": lambda torch, op, get, x: torch.nn.functional.layer_norm(
        x, x.shape[-1:], get("weight"), get("bias"), op["epsilon"]),
    "gelu": lambda torch, op, get, x: torch.nn.functional.gelu(x),
    "attention": lambda torch, op, get, x: attention(torch, op, x),
    "embed": embed,
    "first_position": lambda torch, op, get, x: x[:, 0],
    "add": lambda torch, op, get, x, branch: x + branch,
}


def check_words(dtype, mode, layout, device):
    """Raises an error that names what no step has."""
    for word, known in ((dtype, NARROW), (mode, MODES),
                        (layout, ("nchw", "nhwc")), (device, ("cpu", "cuda"))):
        if word not in known:
            raise ValueError("'%s' is none of %s" % (word, ", ".join(known)))
    for word in (dtype, mode):
        if device == "cpu" and word in ("tf32", "float16", "graph"):
            raise ValueError(word + " needs a GPU")


def use_gpu(torch, dtype):
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch finds no GPU")
    # Ours computes float32 without TF32 too. The fastest algorithms count.
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.benchmark = True


def make_scaler(torch):
    if hasattr(torch.amp, "GradScaler"):  # Since 2.3.
        return torch.amp.GradScaler("cuda")
    return torch.cuda.amp.GradScaler()


class Step:
    def __init__(self, torch, threads, dtype, mode, layout, device, folder):
        check_words(dtype, mode, layout, device)
        torch.set_num_threads(int(threads))
        self.device = torch.device(device)
        self.on_gpu = device == "cuda"
        if self.on_gpu:
            use_gpu(torch, dtype)
        self.torch = torch
        self.folder = folder
        self.before = resident("RssAnon")
        tensors, metadata = open_tensors(torch, folder + "/case.safetensors")
        network = json.loads(metadata["network"])
        self.operations = network["operations"]
        # Each value is released after its last use.
        last = {value: i for i, op in enumerate(self.operations)
                for value in op["inputs"]}
        self.drops = [[v for v in set(op["inputs"]) if last[v] == i]
                      for i, op in enumerate(self.operations)]
        memory = (torch.channels_last if layout == "nhwc"
                  else torch.contiguous_format)

        def own(tensor):
            tensor = tensor.clone().to(self.device)
            return (tensor.to(memory_format=memory) if tensor.dim() == 4
                    else tensor)

        self.parameters = {name: torch.nn.Parameter(own(tensors.pop(name)))
                           for name in network["parameters"]}
        self.buffers = {name: own(tensors.pop(name))
                        for name in network["buffers"]}
        images = tensors.pop("input.images").permute(0, 3, 1, 2)
        self.images = images.clone(memory_format=memory).to(self.device)
        self.labels = tensors.pop("input.labels").long().to(self.device)
        if tensors:
            raise KeyError("tensors that nobody uses: " + ", ".join(tensors))
        self.weight_bytes = sum(
            t.numel() * t.element_size()
            for t in (*self.parameters.values(), *self.buffers.values()))
        self.narrow = NARROW[dtype] and getattr(torch, NARROW[dtype])
        self.loss = self.forward
        if mode == "compile":
            options = ({"mode": "max-autotune-no-cudagraphs"} if self.on_gpu
                       else {})
            self.loss = torch.compile(self.forward, dynamic=False, **options)
        self.optimizer = torch.optim.SGD(list(self.parameters.values()),
                                         LEARNING_RATE, foreach=True)
        self.scaler = make_scaler(torch) if dtype == "float16" else None
        self.graph = None
        if mode == "graph":
            self.capture()

    def capture(self):
        """Makes the graph, and leaves parameters and buffers as they were."""
        torch, cuda = self.torch, self.torch.cuda
        tensors = [*self.parameters.values(), *self.buffers.values()]
        values = [tensor.detach().clone() for tensor in tensors]
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self.take()
        cuda.current_stream().wait_stream(side)
        # The captured backward pass makes gradients in the graph's memory.
        self.optimizer.zero_grad(set_to_none=True)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.captured_loss = self.passes()
            if self.scaler is None:
                self.optimizer.step()
        with torch.no_grad():
            for tensor, value in zip(tensors, values):
                tensor.copy_(value)
        self.graph = graph

    def forward(self):
        with self.torch.autocast(self.device.type, self.narrow,
                                 enabled=self.narrow is not None):
            return self.network_loss()

    def network_loss(self):
        values = {0: self.images}
        for i, op in enumerate(self.operations):
            def get(key):
                name = op.get(key)
                found = self.parameters.get(name)
                return self.buffers.get(name) if found is None else found

            inputs = [values[v] for v in op["inputs"]]
            for v in self.drops[i]:
                del values[v]
            x = KINDS[op["kind"]](self.torch, op, get, *inputs)
            values[i + 1] = x
            del inputs
        del values
        return self.torch.nn.functional.cross_entropy(x.flatten(1), self.labels)

    def passes(self):
        loss = self.loss()
        scaled = loss if self.scaler is None else self.scaler.scale(loss)
        scaled.backward()
        return loss.detach()

    def backward(self):
        """Returns the loss, and leaves the gradients, without a scale. A graph
        without a GradScaler makes the update too, which changes no gradient."""
        if self.graph is not None:
            self.graph.replay()
            loss = self.captured_loss
        else:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.passes()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return loss

    def update(self):
        """After backward(). A GradScaler skips it if a gradient is infinite."""
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.graph is None:
            self.optimizer.step()

    def finite_backward(self):
        """Does as backward(), with smaller scales until gradients are finite."""
        for _ in range(MOST_SCALES):
            loss = self.backward()
            if self.scaler is None or all(
                    parameter.grad.isfinite().all()
                    for parameter in self.parameters.values()):
                return loss
            self.update()
        raise ArithmeticError("its gradients are finite with no scale")

    def first(self):
        loss = self.finite_backward()
        written, _ = open_tensors(self.torch,
                                  self.folder + "/gradients.safetensors")
        for name, parameter in self.parameters.items():
            written.pop(name).copy_(parameter.grad)
        self.update()
        if written:
            raise KeyError("the network has no gradients of: " + ", ".join(written))
        return "loss", repr(loss.item())

    def take(self):
        loss = self.backward()
        self.update()
        return loss

    def memory(self):
        """Returns the peak of resident memory during three steps. Memory of
        files, memory from before the load, and weights do not count."""
        self.take()
        self.optimizer.zero_grad(set_to_none=True)
        # Memory that loading and compiling have freed does not count, as in
        # ours.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # Resets the kernel's record of the peak.
        for _ in range(3):
            self.take()
        peak = resident("VmHWM") - resident("RssFile")
        return "memory", peak - self.before - self.weight_bytes

    def time(self, seconds):
        if self.on_gpu:
            return self.time_by_events(float(seconds))
        samples = []
        start = time.perf_counter()
        while not samples or samples[-1] - start < float(seconds):
            loss = self.take()
            samples.append(time.perf_counter())
        if not loss.item() == loss.item():
            raise ArithmeticError("its loss is not a number")
        return ("timed", *(b - a for a, b in zip([start] + samples, samples)))

    def time_by_events(self, seconds):
        """Times steps from the end of one to the end of the next, by the GPU's
        events. The host is at most two steps ahead, as ours. The first step
        begins after a pause and does not count."""
        ends = []
        start = time.perf_counter()
        while len(ends) < 2 or time.perf_counter() - start < seconds:
            if len(ends) > 2:
                ends[-3].synchronize()
            loss = self.take()
            ends.append(self.torch.cuda.Event(enable_timing=True))
            ends[-1].record()
        ends[-1].synchronize()
        if not loss.item() == loss.item():
            raise ArithmeticError("its loss is not a number")
        return ("timed", *(a.elapsed_time(b) / 1e3
                           for a, b in zip(ends, ends[1:])))

    def ddp(self, rank, world_size, learning_rate, images, steps):
        """Trains as one rank. The ranks have different labels, so only sums of
        gradients make them end with the same parameters."""
        torch, dist = self.torch, self.torch.distributed
        if self.graph is not None:
            raise ValueError("a graph has no ranks")
        self.optimizer.param_groups[0]["lr"] = float(learning_rate)
        self.images = self.images[:int(images)]
        self.labels = self.labels.roll(int(rank))[:int(images)]
        if int(world_size) > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", "file://" + self.folder + "/meet",
                                    rank=int(rank), world_size=int(world_size))
            module = torch.nn.Module()
            for i, parameter in enumerate(self.parameters.values()):
                module.register_parameter("p%d" % i, parameter)
            for i, buffer in enumerate(self.buffers.values()):
                module.register_buffer("b%d" % i, buffer)
            module.forward = self.forward
            self.loss = torch.nn.parallel.DistributedDataParallel(module)
        samples = [time.perf_counter()]
        for _ in range(int(steps)):
            loss = self.take().item()
            samples.append(time.perf_counter())
        if not abs(loss) < float("inf"):
            raise ArithmeticError("its loss is not a number")
        same = True
        for parameter in self.parameters.values() if int(world_size) > 1 else ():
            own = parameter.detach().contiguous()
            first = own.clone()
            dist.broadcast(first, 0)
            same = same and torch.equal(first, own)
        return ("stepped", int(same), loss,
                *(b - a for a, b in zip(samples, samples[1:])))


def main():
    try:
        import torch
    except Exception as error:  # A broken installation may raise any error.
        answer("missing", str(error).split("\n")[0])
        return
    answer("ready", torch.__version__)
    step = None
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split(" ", 6)
        try:
            if command == "load":
                step = None  # The next step has the memory to itself.
                if len(words) != 6:
                    raise ValueError("load needs 6 words")
                step = Step(torch, *words)
                answer("loaded")
            elif step is None:
                raise ValueError("nothing was loaded")
            elif command not in COMMANDS:
                raise ValueError("no such line: " + command)
            else:
                answer(*getattr(step, command)(*words))
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            answer("cannot", type(error).__name__ + ": " + text)


if __name__ == "__main__":
    main()
