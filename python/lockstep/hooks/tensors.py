"""Digests and sums of PyTorch's tensors."""

import torch

from .. import digest

PROBED = 16  # Values.
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # By the size of an element.


def plain(tensor):
    """Returns a contiguous, dense tensor on the CPU with this rank's values. Copies if it must."""
    tensor = tensor.detach()
    if type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.is_cpu:
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.cpu().resolve_conj().resolve_neg().contiguous()


def identity(tensor):
    """Returns the address, the version and a probe of this rank's values.

    A change in place counts the version up, unless it goes through .data or another library. A
    few values, evenly spaced in memory, show such a change if it concerns the whole tensor.
    """
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.data_ptr(), tensor._version, probe(local.detach())


def probe(tensor):
    if tensor.layout != torch.strided or not tensor.numel():
        return b""
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    count = min(PROBED, span)
    step = max(1, (span - 1) // max(1, count - 1))
    few = tensor.as_strided((count,), (step,), tensor.storage_offset())
    return raw(few.cpu().contiguous()).tobytes()


def raw(tensor):
    """Returns the bits of a plain tensor as a numpy array of whole numbers."""
    return tensor.reshape(-1).view(WHOLE.get(tensor.element_size(), torch.uint8)).numpy()


def numbers(tensor):
    """Returns the values of a plain tensor as a numpy array of a type that numpy has."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype == torch.bfloat16 or "float8" in str(tensor.dtype):
        tensor = tensor.float()
    return tensor.numpy()


def digest_of(tensor):
    return digest.digest(raw(plain(tensor)))


def digest_and_sums(tensor, part=None):
    """Returns [digest, sum, sum of squares, projection] of this rank's values.

    part: [first element, number] of a shard, whose sums add up to those of the whole tensor.
    """
    tensor = plain(tensor)
    first = part[0] if part else 0
    return [digest.digest(raw(tensor)), *digest.sums(numbers(tensor), first)]


def linear_sums(tensor):
    """Returns the sum and the projection."""
    return digest.linear_sums(numbers(plain(tensor)))


def leaves_of(value, found=None):
    """Returns the tensors of a nest of dicts, lists and tuples, in order."""
    found = [] if found is None else found
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            leaves_of(item, found)
    elif hasattr(value, "items") and hasattr(value, "keys"):
        for _, item in value.items():
            leaves_of(item, found)
    return found


def sample_digests(batch):
    """Returns a digest for each sample of a collated batch, or one for the whole batch."""
    leaves = [plain(leaf) for leaf in leaves_of(batch)]
    if not leaves:
        return []
    rows = leaves[0].shape[0] if leaves[0].dim() else 0
    if rows and all(leaf.dim() and leaf.shape[0] == rows for leaf in leaves):
        full = [leaf for leaf in leaves if leaf.numel()]
        parts = [leaf.reshape(rows, -1).view(torch.uint8).numpy() for leaf in full]
        return digest.row_digests(parts) if parts else []
    return [digest.combine([digest.digest(raw(leaf)) for leaf in leaves])]
