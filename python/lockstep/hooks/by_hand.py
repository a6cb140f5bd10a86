"""Updates that a script writes by hand: parameters that no optimizer holds change after backward.

Nothing says when such an update ends. It is recorded at the first event behind it: a batch, a forward
pass through DDP, a backward pass, an optimizer's step, an evaluation, a file, the end. The gradients
that it uses are read before the script clears them.

Beside an optimizer, only parameters that a backward pass reaches are watched, and only if it reaches
parameters of the optimizer too: some optimizers hold copies of the model's parameters.
"""

import weakref

import torch

from . import kept, lines, models, shards, tensors

PASSES = 10  # The first backward passes, whose graphs are searched for parameters.
IDLE_PASSES = 100  # Backward passes without an update by hand, after which none is expected.
COPIED = (torch.float16, torch.bfloat16)  # Of such parameters, optimizers hold copies.


class ByHand:
    """Stands for the optimizer that the script does not have. It keeps no parameter alive."""

    def __init__(self, parameters):
        self.references = [weakref.ref(parameter) for parameter in parameters]

    @property
    def param_groups(self):
        found = [reference() for reference in self.references]
        return [{"params": [parameter for parameter in found if parameter is not None]}]


class Watched:
    """Parameters that one backward pass was the first to reach, as they were when last seen."""

    def __init__(self, recorder, parameters):
        self.recorder = recorder
        for parameter in parameters:
            recorder.perturb(parameter)
        self.optimizer = ByHand(parameters)
        recorder.optimizers.add(self.optimizer)
        self.state = recorder.optimizers.known[self.optimizer]
        self.indices = {id(parameter): index for index, parameter in enumerate(parameters)}
        self.first = [tensors.digest_and_sums(parameter) for parameter in parameters]
        self.identities, self.digests, self.sums = snapshot(parameters)
        self.moved = True  # Whether the script has changed parameters between two updates.
        self.passes = 0  # Backward passes since the last update.
        self.first_passes = 0  # Those before the first update.
        self.held = []  # The parameters, from a backward pass until its update is recorded.
        self.addresses = {}  # {address of a gradient: index}.
        self.gradients = {}  # By index, those that the script has cleared since the last pass.
        self.results = {}  # By index, those that autograd.grad has returned since the last update.
        self.reads = ("", "")  # The last two lines that have read gradients since the last pass.
        self.line = ""  # The line of the update, if gradients were cleared behind it.

    def after_backward(self):
        self.held = self.state.parameters()
        self.passes += 1
        self.first_passes += not self.state.steps
        self.gradients = {}
        self.reads, self.line = ("", ""), ""
        self.addresses = {
            p.grad.data_ptr(): index for index, p in enumerate(self.held) if p.grad is not None
        }

    def see_result(self, index, gradient):
        """After autograd.grad, whose results no parameter holds."""
        self.results[index] = gradient
        self.state.see_gradient(index, gradient)

    def see_read(self, line):
        if line != self.reads[1]:
            self.reads = self.reads[1], line

    def see_cleared(self, index, gradient):
        """Before a gradient is cleared."""
        if not self.passes or index in self.gradients or gradient is None:
            return
        here = lines.user_line()
        before, last = self.reads
        self.line = self.line or (before if last == here else last) or here
        if self.state.in_detail():
            self.gradients[index] = tensors.digest_and_sums(gradient)

    def settle(self):
        """Records an update if the script has made one. Returns whether all parameters live."""
        parameters = self.state.parameters()
        if len(parameters) < len(self.indices):
            return False
        identities = [tensors.identity(parameter) for parameter in parameters]
        if identities == self.identities:
            return True
        identities, digests, sums = snapshot(parameters)
        before, self.digests, self.identities = self.digests, digests, identities
        if digests == before:
            return True
        if self.passes:
            self.record(parameters, before, sums)
            self.moved, self.passes, self.held, self.results = False, 0, [], {}
        else:
            self.moved = True
        self.sums = sums
        return True

    def record(self, parameters, before, sums):
        state, optimizers = self.state, self.recorder.optimizers
        optimizers.begin_update(state)
        fields = {"line": self.line or self.reads[1] or state.line}
        if not state.steps:
            fields["first"] = self.first
        if self.moved:
            fields["before"] = before
        if state.in_detail():
            fields["gradients"] = [
                self.gradients.get(index) or sums_of(parameter.grad, self.results.get(index))
                for index, parameter in enumerate(parameters)
            ]
            fields["local"] = [state.local.get(index) for index in range(len(parameters))]
            fields["left_out"] = []
            fields["moved"] = [
                [new - old for new, old in zip(*pair)] for pair in zip(sums, self.sums)
            ]
            fields["buffers"] = state.digests_of_buffers()
        if self.recorder.draws.take():
            fields["drew"] = True
        state.local = {}
        optimizers.see_groups(state, fields)
        keeping = kept.begin(self.recorder, state.names, parameters, before=False)
        if keeping:
            kept.end(self.recorder, keeping, state.names, parameters)
        optimizers.end_update(state, fields, self.digests)


class Updates:
    """All parameters that the script may update by hand."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.watched = []
        self.passes = 0  # Backward passes whose graph was looked at.
        self.beside = False  # Whether the script has an optimizer.
        self.stopped = False
        self.takes = False  # During autograd.grad, whose hooks of parameters depend on PyTorch.
        self.originals = {}  # What torch.Tensor had before hooks were installed.

    def see_optimizer(self, optimizer):
        """The script makes an optimizer, which updates the parameters that it holds."""
        if isinstance(optimizer, ByHand):
            return
        self.settle()
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        taken = [watched for watched in self.watched if held & set(watched.indices)]
        for watched in taken:
            self.forget(watched)
        if taken or not self.beside:
            self.passes = 0  # The others of its parameters are searched again.
        self.beside = True

    def forget(self, watched):
        self.recorder.optimizers.known.pop(watched.optimizer, None)
        self.watched.remove(watched)
        if not self.watched:
            self.restore()

    def stop(self):
        self.stopped = True
        for watched in list(self.watched):
            self.forget(watched)

    def restore(self):
        """Gives torch.Tensor back what it had before hooks were installed."""
        for name, original in self.originals.items():
            if original is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
        self.originals = {}

    def settle(self):
        """Records the updates that the script has made since the last backward pass."""
        self.settle_if(lambda watched: watched.passes)

    def settle_if(self, wanted):
        for watched in list(self.watched):
            if wanted(watched) and not watched.settle():
                self.forget(watched)  # The script has dropped parameters, and may make new ones.

    def before_backward(self, losses):
        self.takes = False
        self.settle_if(lambda watched: True)
        if not self.stopped and self.passes < PASSES:
            self.passes += 1
            self.discover(losses)

    def after_backward(self):
        for watched in list(self.watched):
            watched.after_backward()
            if self.beside and watched.first_passes > IDLE_PASSES:
                self.forget(watched)

    def before_grad(self, losses, inputs):
        """Returns whether autograd.grad asks for gradients of parameters that are watched.

        inputs: those that it is asked for, or [] if nobody knows: a model's, probably.
        """
        if self.stopped:
            return False
        self.before_backward(losses)
        known = [leaf for leaf in inputs if self.holder_of(leaf)[0] is not None]
        self.takes = bool(known or (self.watched and not inputs))
        return self.takes

    def after_grad(self, inputs, gradients):
        self.takes = False
        self.after_backward()
        inputs = inputs or self.parameters_like(gradients)
        for leaf, gradient in zip(inputs, gradients):
            watched, index = self.holder_of(leaf)
            if watched is not None and gradient is not None:
                watched.see_result(index, gradient)

    def parameters_like(self, gradients):
        """Returns the watched parameters that have the gradients' shapes, in order, or []."""
        shapes = [None if gradient is None else gradient.shape for gradient in gradients]
        for watched in self.watched:
            parameters = watched.state.parameters()
            if [p.shape for p in parameters] == shapes:
                return parameters
        return []

    def discover(self, losses):
        """Watches the parameters that this backward pass is the first to reach."""
        known = {index for watched in self.watched for index in watched.indices}
        leaves = [leaf for leaf in leaves_before(losses) if id(leaf) not in known]
        found = self.beside_optimizers(leaves) if self.beside else self.alone(leaves, known)
        if not found:
            return
        if any(shards.is_sharded(p) or type(p).__name__ == "FlatParameter" for p in found):
            self.stop()
            return
        self.watched.append(Watched(self.recorder, found))
        self.observe_gradients()

    def alone(self, leaves, known):
        """Returns the parameters to watch if the script has no optimizer."""
        roots = models.holders_of(leaves) if leaves else []
        trained = {id(p): p for root in roots for p in root.parameters() if p.requires_grad}
        found = [p for key, p in trained.items() if key not in known]
        if not found and self.watched:
            return []  # Inputs with gradients, beside a model.
        return found or leaves

    def beside_optimizers(self, leaves):
        """Returns the parameters to watch beside those that optimizers hold."""
        held = self.recorder.optimizers.held()
        others = [p for p in leaves if id(p) not in held and p.dtype not in COPIED]
        if not others or not any(id(leaf) in held for leaf in leaves):
            return []
        if any(map(shards.is_sharded, held.values())):
            self.stop()  # FSDP2 copies the optimizer's shards into the parameters of models.
            return []
        in_models = {id(p) for root in models.holders_of(others) for p in root.parameters()}
        return [p for p in others if id(p) in in_models]

    def holder_of(self, parameter):
        """Returns (Watched, index) of a parameter, or (None, None)."""
        for watched in self.watched:
            index = watched.indices.get(id(parameter))
            if index is not None and watched.optimizer.references[index]() is parameter:
                return watched, index
        return None, None

    def see_read(self, parameter):
        """Before the script reads a tensor's gradient."""
        watched, _ = self.holder_of(parameter)
        if watched is not None and watched.passes:
            watched.see_read(lines.user_line())

    def see_assigned(self, original, parameter, value):
        """Before the script assigns or deletes a tensor's gradient."""
        watched, index = self.holder_of(parameter)
        if watched is None:
            return
        if value is None or tensors.identity(parameter) != watched.identities[index]:
            watched.see_cleared(index, original.__get__(parameter))

    def see_zeroed(self, args, kwargs):
        """Before Tensor.zero_()."""
        del kwargs
        if type(args[0]) is not torch.Tensor:
            return
        address = args[0].data_ptr()
        for watched in self.watched:
            index = watched.addresses.get(address)
            if index is not None:
                watched.see_cleared(index, args[0])

    def observe_gradients(self):
        """Observes how the script reads and clears gradients. No other script pays for this."""
        if self.originals:
            return
        own = vars(torch.Tensor)
        self.originals = {"grad": own.get("grad"), "zero_": own.get("zero_")}
        original = torch.Tensor.grad
        guard = self.recorder.guard

        def get(tensor):
            guard("Tensor.grad", self.see_read, tensor)
            return original.__get__(tensor)

        def assign(tensor, value):
            guard("Tensor.grad", self.see_assigned, original, tensor, value)
            original.__set__(tensor, value)

        def delete(tensor):
            guard("Tensor.grad", self.see_assigned, original, tensor, None)
            original.__delete__(tensor)

        torch.Tensor.grad = property(get, assign, delete, original.__doc__)
        self.recorder.wrap(torch.Tensor, "zero_", self.see_zeroed)


def snapshot(parameters):
    """Returns identities, digests and linear sums."""
    return (
        [tensors.identity(parameter) for parameter in parameters],
        [tensors.digest_of(parameter) for parameter in parameters],
        [tensors.linear_sums(parameter) for parameter in parameters],
    )


def sums_of(gradient, result):
    gradient = result if gradient is None else gradient
    return None if gradient is None else tensors.digest_and_sums(gradient)


def leaves_before(losses):
    """Returns the leaf tensors that a backward pass from these losses reaches."""
    found, seen = {}, set()
    stack = [loss.grad_fn for loss in losses]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.setdefault(id(leaf), leaf)
        stack.extend(function for function, _ in node.next_functions)
    return list(found.values())


def install(recorder):
    recorder.by_hand = Updates(recorder)
