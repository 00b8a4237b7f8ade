"""A forward that is bound to an instance in place of its class's, and what tells that the modules under it
are no longer those that it was made for."""

import types
import weakref

import torch
from torch.nn.modules import module as _modules
from torch.utils.hooks import RemovableHandle


class Bound:
    """Keeps its module no longer than others do. A copy of the module, or what pickle makes of it, has the
    forward of its class again."""

    def __init__(self, module):
        self.module = weakref.ref(module)

    def __deepcopy__(self, memo):
        module = memo.get(id(self.module()))
        return self if module is None else types.MethodType(type(module).forward, module)

    def __reduce__(self):
        return getattr, (self.module(), "forward")  # which has none of its own yet


def hooked(module):
    """Whether somebody listens to a module: Transformers' own hooks sleep until outputs are asked for, and
    such calls do not come here."""
    if not module._forward_hooks and not module._forward_pre_hooks:
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(getattr(hook, "__module__", "") != "transformers.utils.output_capturing" for hook in hooks)


class Watch:
    """The modules below one, as they are now: who runs them otherwise than by calling them asks whether one
    was put in another's place since (an adapter, a quantised linear) or is listened to. PyTorch numbers its
    hooks, so that they are looked for only where there are new ones."""

    def __init__(self, module):
        self.below = [(name, m) for name, m in module.named_modules() if name]
        every = [module, *(m for _, m in self.below)]
        self.now = [m._modules for m in every if m._modules]
        self.then = [dict(children) for children in self.now]
        self.leaves = [m._modules for m in every if not m._modules]  # a parametrization is a child
        self.top = weakref.ref(module)
        self.children = [(m, name, child) for m in every for name, child in m._modules.items() if m is not module]
        self.forwards = [(name, vars(m), vars(m).get("forward")) for name, m in self.below]
        self.why = self.seen = None

    @torch.compiler.assume_constant_result
    def look(self):
        """What is not as it was, or None."""
        for children, known in zip(self.now, self.then):
            for name in {**known, **children}:
                if children.get(name) is not known.get(name):
                    return f"another {name} than when it was patched"
        if _modules._global_forward_hooks or _modules._global_forward_pre_hooks:
            return "a hook on every module"
        for name, m in self.below:
            if hooked(m):
                return f"a hook on {name}"
        return self.rebound()

    def rebound(self):
        if any(self.leaves):
            return "a parametrization"
        for name, said, forward in self.forwards:
            if said.get("forward") is not forward:
                return f"another forward on {name}"
        return None

    def changed(self, whole=True):
        """What is not as it was, or None; if not the whole, without what is slow to look for."""
        if torch.compiler.is_compiling():
            top = self.top()
            own = [(top, name, child) for name, child in self.then[0].items()]
            for m, name, child in own + self.children:  # in the open: a graph is made anew where one is another
                if getattr(m, name, None) is not child:
                    return f"another {name} than when it was patched"
            return self.look()
        newest = RemovableHandle.next_id
        if self.why is not None or newest != self.seen or self.now != self.then or (whole and self.rebound()):
            self.why, self.seen = self.look(), newest
        return self.why
