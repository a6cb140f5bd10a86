"""Records each update: gradients, parameters, buffers, and the optimizer's settings."""

import sys
import weakref

import torch

from . import by_hand, kept, lines, models, numerics, scalers, shards, tensors


class Optimizer:
    """One optimizer of the script, and the sums of its gradients since the last update."""

    def __init__(self, recorder, number, optimizer):
        self.recorder = recorder
        self.number = number
        self.optimizer = weakref.ref(optimizer)
        self.line = lines.user_line()
        self.steps = 0
        self.names = []
        self.described = None  # What the last event "optimizer" said.
        self.groups = None
        self.models = []  # Weak references: a record keeps no model, and so no group, alive.
        self.hooked = set()
        self.parts = []  # By index: this rank's part of a sharded parameter, or None.
        self.slices = None  # With DeepSpeed's ZeRO: what stands for the optimizer's flat tensors.
        self.indices = {}  # By id of the parameter.
        self.local = {}  # By index of the parameter: [backward passes, sum, projection].
        self.reduced = None  # By index: sums of the gradients that the last backward pass left.
        self.evaluated = None  # The update at which the models' buffers were last recorded.
        self.after = []  # By index: (identity, digest) after the last step.
        self.largest_call = 0  # Numbers in the largest call since the last step.
        self.hook_gradients()

    @property
    def roots(self):
        """The models around the parameters, as far as they are alive."""
        return [root for root in (model() for model in self.models) if root is not None]

    def parameters(self):
        if self.slices:
            return self.slices.views
        return [p for group in self.optimizer().param_groups for p in group["params"]]

    def wholes(self):
        """Returns the parameters as the model has them."""
        return self.slices.wholes if self.slices else self.parameters()

    def shapes(self):
        """Returns the shapes of the whole parameters."""
        return self.slices.shapes if self.slices else [list(p.shape) for p in self.parameters()]

    def in_detail(self):
        options = self.recorder.options
        return self.steps < options["first"] or self.steps % options["every"] == 0

    def hook_gradients(self):
        """Observes each gradient where backward makes it, before DDP or the script reduces it."""
        parameters = self.wholes()
        self.indices = {id(parameter): index for index, parameter in enumerate(parameters)}
        for parameter in parameters:
            if id(parameter) in self.hooked or not parameter.requires_grad:
                continue
            if not parameter.is_leaf or shards.is_sharded(parameter):
                continue
            self.hooked.add(id(parameter))
            parameter.register_hook(self.gradient_hook(id(parameter)))

    def gradient_hook(self, key):
        reference = weakref.ref(self)  # The parameter holds the hook.

        def hook(gradient):
            state = reference()
            if state is not None and key in state.indices:
                index = state.indices[key]
                state.recorder.guard("gradient", state.see_gradient, index, gradient)

        return hook

    def index_of(self, parameter):
        return self.indices.get(id(parameter))

    def see_reduced(self):
        """Sums the gradients of shards after a backward pass, before the script changes them."""
        parameters = self.parameters()
        if self.in_detail() and any(shards.is_sharded(p) for p in parameters):
            self.recorder.open()
            self.describe()
            self.reduced = self.sums_of_gradients(parameters)

    def sums_of_gradients(self, parameters):
        """Returns the gradients' digests and sums, or None if they are not sharded alike."""
        if not all(p.grad is None or shards.is_scattered_as(p.grad, p) for p in parameters):
            return None
        found = [
            None if p.grad is None else tensors.digest_and_sums(p.grad, part)
            for p, part in zip(parameters, self.parts)
        ]
        scale = scalers.scale_of(self.optimizer())
        return [scalers.unscaled(sums, scale) for sums in found]

    def own_gradients(self):
        """Returns by parameter [backward passes, sum, projection] of the passes of this update."""
        scale = self.recorder.scalers.scale_of_passes()
        found = [self.local.get(index) for index in range(len(self.parameters()))]
        return [own and [own[0], own[1] / scale, own[2] / scale] for own in found]

    def forget_gradients(self):
        """Begins another update."""
        self.local, self.reduced = {}, None

    def see_gradient(self, index, gradient):
        if not self.in_detail() or self.recorder.by_hand.takes:
            return
        total, projection = tensors.linear_sums(gradient)
        known = self.local.setdefault(index, [0, 0.0, 0.0])
        known[0] += 1
        known[1] += total
        known[2] += projection

    def describe(self):
        """Writes the optimizer's parameters and the models around them, if they have changed."""
        parameters = self.wholes()
        described = [id(parameter) for parameter in parameters]
        if described == self.described:
            return
        self.described = described
        self.parts = shards.parts_of(parameters, self.recorder.world_size)
        if self.slices:
            self.parts = self.slices.parts
        self.hook_gradients()
        watched = [model() for model in self.recorder.watched if model() is not None]
        self.models = [weakref.ref(root) for root in models.holders_of(parameters, watched)]
        names = models.names_of(self.roots)
        self.names = [names.get(id(p), "parameter %d" % i) for i, p in enumerate(parameters)]
        self.recorder.event(
            "optimizer",
            optimizer=self.number,
            type=type(self.optimizer()).__name__,
            line=self.line,
            parameters=[
                [name, shape, str(p.dtype)[6:]]
                for name, shape, p in zip(self.names, self.shapes(), parameters)
            ],
            devices=[str(parameter.device) for parameter in parameters],
            models=[describe_model(root) for root in self.roots],
            sharded="" if self.slices else why_sharded(parameters, self.parts, self.roots),
            **({"parts": self.parts} if any(self.parts) else {}),
        )

    def digests_of_buffers(self):
        return [tensors.digest_of(b) for root in self.roots for b in root.buffers()]

    def left_out(self, held):
        """Returns names of parameters of these models that have gradients and no optimizer."""
        found = [
            id(p)
            for root in self.roots
            for p in root.parameters()
            if id(p) not in held and p.requires_grad and p.grad is not None
        ]
        names = models.names_of(self.roots) if found else {}
        return [names[key] for key in found]

    def changed_before(self, parameters):
        """Returns digests of the parameters before the step, or None where nothing moved them."""
        # A script may copy into a few values what a call has brought, which shows in no probe. A
        # call of fewer numbers than any parameter has, such as a loss, moves none.
        smallest = min((p.numel() for p in parameters if p.numel()), default=0)
        if self.largest_call < smallest and len(self.after) == len(parameters):
            if all(tensors.identity(p) == known for p, (known, _) in zip(parameters, self.after)):
                return None
        return [tensors.digest_of(p) for p in parameters]


class Optimizers:
    """All optimizers of the process, in the order in which the script made them."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.known = weakref.WeakKeyDictionary()
        self.made = 0
        self.depth = 0

    def add(self, optimizer):
        if optimizer in self.known:
            return
        self.recorder.by_hand.see_optimizer(optimizer)
        self.hook_class(type(optimizer))
        self.known[optimizer] = Optimizer(self.recorder, self.made, optimizer)
        self.made += 1

    def held(self):
        """Returns {id: parameter} of those that an optimizer holds or a script updates by hand."""
        states = [
            state
            for optimizer, state in self.known.items()
            if state.steps or not isinstance(optimizer, by_hand.ByHand)
        ]
        return {id(p): p for state in states for p in state.wholes()}

    def see_call(self, numbers):
        for state in self.known.values():
            state.largest_call = max(state.largest_call, numbers)

    def see_backward(self):
        """After a backward pass."""
        for state in self.known.values():
            state.see_reduced()

    def hook_class(self, kind):
        """Hooks the step of a class. Only the outermost step of a process is observed."""
        if getattr(kind.__dict__.get("step"), "_lockstep_hook", False):
            return
        if "step" not in kind.__dict__:
            for base in kind.__mro__[1:]:
                if "step" in base.__dict__:
                    self.hook_class(base)
                    return
            return
        self.recorder.wrap(kind, "step", self.before_step, self.after_step, self.leave_step)

    def before_step(self, args, kwargs):
        del kwargs
        self.depth += 1
        state = self.known.get(args[0])
        if self.depth > 1 or state is None:
            return None
        found = scalers.found_inf(args[0])
        if state.slices:
            if not scalers.is_skipped(found):
                state.slices.see_step(args[0], state.in_detail())
            return None
        self.recorder.by_hand.settle()
        self.begin_update(state)
        keeping = kept.begin(self.recorder, state.names, state.parameters())
        return state, self.observe_gradients(state), keeping, found

    def begin_update(self, state):
        """Says what an update is about, if it has not been said."""
        self.recorder.open()
        if not self.recorder.update:
            self.recorder.event("numerics", **numerics.describe(state.parameters()))
        state.describe()

    def observe_gradients(self, state):
        parameters = state.parameters()
        fields = {"line": lines.user_line()}
        if not state.steps:
            fields["first"] = [
                tensors.digest_and_sums(p, part) for p, part in zip(parameters, state.parts)
            ]
        gradients = state.sums_of_gradients(parameters) if state.in_detail() else None
        if gradients is not None:
            fields["gradients"] = gradients
            if state.reduced:
                fields["reduced"] = state.reduced
            fields["local"] = state.own_gradients()
            held = self.held()
            fields["left_out"] = state.left_out(held)
            fields["buffers"] = state.digests_of_buffers()
            if all(gradient is None for gradient in fields["gradients"]):
                fields["strangers"] = len(models.strangers(held))
        if self.recorder.draws.take():
            fields["drew"] = True
        state.forget_gradients()
        before = state.changed_before(parameters)
        if before is not None:
            fields["before"] = before
        self.see_groups(state, fields)
        return fields

    def see_groups(self, state, fields):
        """Adds the settings of the groups to an update's fields if they have changed."""
        groups = describe_groups(state.optimizer())
        if groups != state.groups:
            state.groups = fields["groups"] = groups

    def after_step(self, token, result, args, kwargs):
        del result, args, kwargs
        if token is None:
            return
        state, fields, keeping, found = token
        parameters = state.parameters()
        state.after = [(tensors.identity(p), tensors.digest_of(p)) for p in parameters]
        if scalers.is_skipped(found):  # The digests have waited for the device.
            self.drop_update(state, fields, keeping)
            return
        if keeping:
            kept.end(self.recorder, keeping, state.names, parameters)
        self.end_update(state, fields, [text for _, text in state.after])

    def drop_update(self, state, fields, keeping):
        """Forgets an update that was skipped: its settings and draws belong to the next one."""
        if keeping:
            kept.drop(keeping)
        if "groups" in fields:
            state.groups = None
        self.recorder.draws.give_back("drew" in fields)

    def end_update(self, state, fields, after):
        """Writes the event of an update. after: digests of the parameters."""
        self.recorder.event(
            "step",
            update=self.recorder.update,
            optimizer=state.number,
            step=state.steps,
            **fields,
            after=after,
        )
        state.steps += 1
        self.recorder.update += 1
        state.largest_call = 0
        if self.recorder.after_update:
            self.recorder.after_update()

    def see_evaluation(self, module):
        """Records the buffers with which a model is evaluated, once between two updates."""
        self.recorder.by_hand.settle()
        for state in self.known.values():
            held = any(module in (root, models.unwrapped(root)) for root in state.roots)
            if held and state.evaluated != self.recorder.update:
                state.evaluated = self.recorder.update
                self.recorder.event(
                    "evaluate",
                    update=self.recorder.update,
                    optimizer=state.number,
                    line=lines.user_line(),
                    buffers=state.digests_of_buffers(),
                )

    def begin_evaluation(self, token, result, args, kwargs):
        """After Module.eval(). A module in DDP is seen at its forward pass instead."""
        del token, result, kwargs
        roots = [root for state in self.known.values() for root in state.roots]
        inside = [root for root in roots if args[0] in (root, models.unwrapped(root))]
        if inside and not any(getattr(root, "broadcast_buffers", False) for root in inside):
            self.see_evaluation(args[0])

    def leave_step(self):
        self.depth -= 1


def why_sharded(parameters, parts, roots):
    """Returns why the ranks hold unknown parts of the parameters, or ""."""
    if any(type(parameter).__name__ == "FlatParameter" for parameter in parameters):
        return "the parameters are sharded"
    for root in roots:
        for module in root.modules():
            if type(module).__name__ == "FullyShardedDataParallel":
                return "the parameters are sharded by FSDP"
    if not roots and "deepspeed" in sys.modules:
        return "the parameters are DeepSpeed's own"
    return shards.why_unknown(parameters, parts)


def describe_groups(optimizer):
    """Returns the settings of each parameter group that are numbers, words or flags."""
    groups = []
    for group in optimizer.param_groups:
        settings = {}
        for name, value in group.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = value.item()
            if isinstance(value, tuple):
                value = list(value)
            if name != "params" and isinstance(value, (bool, int, float, str, list)):
                settings[name] = value
        groups.append(settings)
    return groups


def describe_model(root):
    """Returns the model's class, its buffers' names, and its kinds of batch normalisation."""
    norms = {"sync": [], "local": []}
    for name, module in root.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            norms["sync"].append(models.own_name(name))
        elif isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            norms["local"].append(models.own_name(name))
    return {
        "type": type(models.unwrapped(root)).__name__,
        "ddp": isinstance(root, torch.nn.parallel.DistributedDataParallel),
        "buffers": [models.own_name(name) for name, _ in root.named_buffers()],
        "buffer_devices": [str(buffer.device) for buffer in root.buffers()],
        "random": any("Dropout" in type(m).__name__ and m.p > 0 for m in root.modules()),
        "trains": sum(parameter.requires_grad for parameter in root.parameters()),
        "batch_norms": norms,
    }


def install(recorder):
    optimizers = recorder.optimizers = Optimizers(recorder)

    def made(token, result, args, kwargs):
        del token, result, kwargs
        optimizers.add(args[0])

    recorder.wrap(torch.optim.Optimizer, "__init__", after=made)
    recorder.wrap(torch.nn.Module, "eval", after=optimizers.begin_evaluation)
