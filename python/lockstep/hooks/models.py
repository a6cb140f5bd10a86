"""Finds the modules that a script trains, from the parameters that its optimizer holds."""

import gc

import torch


def live_modules():
    """Returns all modules of the process, in the order of the garbage collector's list."""
    module = torch.nn.Module
    return [found for found in gc.get_objects() if issubclass(type(found), module)]


def roots_among(modules):
    """Returns the modules that are no child of another one."""
    children = set()
    for module in modules:
        children.update(id(child) for child in module.__dict__.get("_modules", {}).values())
    return [module for module in modules if id(module) not in children]


def own_name(name):
    """Returns the name that a parameter has in the user's model, without wrappers of PyTorch."""
    for prefix in ("module.", "_orig_mod."):
        while name.startswith(prefix):
            name = name[len(prefix) :]
    return name.replace("._orig_mod.", ".")


def names_of(roots):
    """Returns {id(parameter): name}. With several models, names begin with the model's class."""
    names = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            name = own_name(name)
            if len(roots) > 1:
                name = "%s.%s" % (type(unwrapped(root)).__name__, name)
            names.setdefault(id(parameter), name)
    return names


def unwrapped(module):
    while isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    return module


def holders_of(parameters, watched=()):
    """Returns the root modules that hold any of the parameters, and those that were watched."""
    wanted = {id(parameter) for parameter in parameters}
    roots = list(watched)
    for root in roots_among(live_modules()):
        if any(root is other for other in roots):
            continue
        if any(id(parameter) in wanted for parameter in root.parameters()):
            roots.append(root)
    return roots


def strangers(held):
    """Returns the parameters with a gradient, in any live module, that are not in `held` (ids)."""
    found = {}
    for module in live_modules():
        for parameter in module.__dict__.get("_parameters", {}).values():
            if parameter is not None and parameter.is_leaf and parameter.grad is not None:
                if id(parameter) not in held:
                    found[id(parameter)] = parameter
    return list(found.values())
