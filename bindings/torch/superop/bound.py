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
        self.now = [m._modules for m in (module, *(m for _, m in self.below)) if m._modules]
        self.then = [dict(children) for children in self.now]
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
        return None

    def changed(self):
        if torch.compiler.is_compiling():
            return self.look()
        newest = RemovableHandle.next_id
        if self.why is not None or newest != self.seen or self.now != self.then:
            self.why, self.seen = self.look(), newest
        return self.why
