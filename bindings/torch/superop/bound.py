"""A forward that is bound to an instance in place of its class's."""

import types
import weakref


class Bound:
    """Keeps its module no longer than others do. A copy of the module has the forward of its class again."""

    def __init__(self, module):
        self.module = weakref.ref(module)

    def __deepcopy__(self, memo):
        module = memo.get(id(self.module()))
        return self if module is None else types.MethodType(type(module).forward, module)
