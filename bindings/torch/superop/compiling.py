"""torch.compile: plain attention found in a graph and put on superop.

torch.compile(model, backend="superop") looks for F.scaled_dot_product_attention in the graph that Dynamo
made, walks back from it through repeated heads, rope and views to the projections, and puts the
library's attention, and on a card its linear of three projections, where they stood. What is rewritten
goes to inductor (options={"then": "eager"} or another backend's name asks for that one). A call is
rewritten only where the graph proves that the result is the same; any other stays as it was, and
superop.matched() has the reason.

The graph is Dynamo's, before autograd: the functions of torch stand in it as they were called, and what
is put there may be a function of Python, which later passes trace. Lengths stay symbols: nothing here
asks for the value of one."""

import collections
import logging
import operator

import torch
import torch.nn.functional as F

from .hf import room_for_pages

ops = torch.ops.superop
log = logging.getLogger("superop")
_SDPA = F.scaled_dot_product_attention
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, *_TYPES)
_WHOLE = slice(None, None, None)


class Matched:
    """What a pass found: `matched` of `of` attentions were put on superop, `parts` counts what was
    rewritten (attention, projections) or seen and left to the compiler (rope), `reasons` what was not."""

    def __init__(self):
        self.of = 0
        self.parts, self.reasons = collections.Counter(), collections.Counter()

    @property
    def matched(self):
        return self.parts["attention"]

    def __iadd__(self, other):
        self.of += other.of
        self.parts += other.parts
        self.reasons += other.reasons
        return self

    def __str__(self):
        text = f"matched {self.matched} of {self.of}"
        return "; ".join([text] + [f"{why} ({n})" if n > 1 else why for why, n in self.reasons.items()])

    __repr__ = __str__


_total = Matched()


def matched(forget=False):
    """What all graphs since the start, or since it was told to forget, had and what of it was matched."""
    global _total
    seen = Matched()
    seen += _total
    if forget:
        _total = Matched()
    return seen


# What is put into a graph. Compilers trace these, so they ask for no value of a symbol.


def _index(b, n, m, like):
    table = torch.arange(b, dtype=torch.int32, device=like.device).unsqueeze(1)
    starts = torch.arange(b + 1, dtype=torch.int32, device=like.device) * n
    return table, starts, torch.full((b,), m, dtype=torch.int32, device=like.device)


def _spread(x):
    """x without strides of 0, which the operators' contracts have no place for."""
    return x.contiguous() if any(isinstance(s, int) and s == 0 for s in x.stride()) else x


def _pages(x, paged):
    """x [b, g, m, d] as pages [b, m, g, d]; with room for whole ones, as the rows of a card want them, where
    paged says so."""
    x = x.transpose(1, 2)
    return room_for_pages(x, 1) if paged else _spread(x)


def _attention(q, k, v, mask, index, scale, causal, paged, dense):
    b, h, n, d = q.shape
    m = k.shape[2]
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        mask = mask.expand(b, -1, n, m).transpose(1, 2).reshape(b * n, mask.shape[1], m).contiguous()
    o = ops.attention(
        _spread(q.transpose(1, 2).reshape(b * n, h, d)), _pages(k, paged), _pages(v, paged), *index, 0, int(causal), 0, scale, 0.0, mask,
        numerics=int(q.dtype is torch.float32),
    )  # fmt: skip
    o = o.view(b, n, h, o.shape[-1]).transpose(1, 2)
    return o.contiguous() if dense else o


def _projections(x, weights, biases):
    y = ops.linear3(x, *weights, *biases)
    return torch.split(y, [w.shape[0] for w in weights], -1)


# Reading a graph.


def _name(node):
    if node is None or node.op == "call_method":
        return node and node.target
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _value(node):
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _same(a, b):
    """Whether two sizes are proven to be one, for every length that the graph serves."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(a == b)


_IN_PLACE = {getattr(operator, name) for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__")} - {
    operator.inv, operator.invert, operator.index
}  # fmt: skip


def _writes(node):
    """Whether a node may write into a tensor: yes where that is not plain."""
    name = _name(node)
    if node.op == "call_method":
        return name.endswith("_") and not name.endswith("__") or name.startswith(("__i", "__set"))
    if node.op != "call_function":
        return node.op == "call_module"
    target, inside = node.target, getattr(node.target, "__module__", None) == "torch.nn.functional"
    return (
        target is operator.setitem
        or target in _IN_PLACE
        or name.endswith("_") and target not in (operator.and_, operator.or_, operator.not_, operator.is_)
        or isinstance(target, (torch._ops.HigherOrderOperator, torch._ops.OpOverloadPacket))
        or isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
        or node.kwargs.get("out") is not None
        or bool(node.kwargs.get("inplace"))
        or inside and True in [x for x in node.args if isinstance(x, bool)]
    )  # fmt: skip


def _first(node):
    """The first operand of a node, where it is one."""
    x = node.args[0] if node.args else None
    return x if isinstance(x, torch.fx.Node) else None


class _Pass:
    def __init__(self, graph, linears):
        self.graph, self.linears = graph, linears
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.writes = [i for node, i in self.order.items() if _writes(node)]
        self.indices = {}
        self.result = Matched()

    def untouched(self, first, last):
        """Whether nothing between two nodes writes in place."""
        a, b = self.order[first], self.order[last]
        return not any(a < i < b for i in self.writes)

    def run(self):
        found = [n for n in self.graph.nodes if n.op == "call_function" and n.target is _SDPA]
        hidden = _inner(self.graph.owning_module)
        self.result.of = len(found) + hidden
        if hidden:
            self.result.reasons["inside the graph of a higher-order operator"] += hidden
        for node in found:
            why = self.attention(node)
            if why:
                self.result.reasons[why] += 1
        return self.result

    def attention(self, node):
        """Rewrite one call; the reason when it cannot be."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, node.args), **node.kwargs)
        q, k, v = (given.pop(name, None) for name in names[:3])
        mask, dropout, causal = given.pop("attn_mask", None), given.pop("dropout_p", 0.0), given.pop("is_causal", False)
        scale, gqa = given.pop("scale", None), given.pop("enable_gqa", False)
        if given:
            return f"the argument {next(iter(given))}"
        out, tensors = _value(node), [_value(x) for x in (q, k, v)]
        if not all(isinstance(t, torch.Tensor) for t in (out, *tensors)):
            return "shapes that the graph does not know"
        if out.requires_grad:
            return "gradients are asked for"
        if isinstance(dropout, torch.fx.Node) or dropout:
            return "dropout of attention weights"
        if not isinstance(causal, bool) or not isinstance(gqa, bool):
            return "is_causal or enable_gqa is no constant"
        if isinstance(scale, torch.fx.Node):
            scale = _value(scale)
        if scale is not None:
            try:
                scale = float(scale)  # where it was a symbol scaled_dot_product_attention has asked already
            except (TypeError, ValueError, RuntimeError):
                return "the scale is no constant"
        why = self.refusal(out, *tensors, mask, causal)
        if why:
            return why
        heads, groups = tensors[0].shape[1], (tensors[1].shape[1], tensors[2].shape[1])
        if groups[0] != groups[1] or heads % groups[0] or (groups[0] != heads and not gqa):
            return f"{heads} heads of queries over {groups[0]} of keys and {groups[1]} of values"
        self.projections(node, q, k, v)
        q = self.bare(q, node)
        bare = [_repeated(self.bare(x, node)) for x in (k, v)]
        if bare[0] and bare[1] and _value(bare[0]).shape[1] == _value(bare[1]).shape[1]:
            if all(self.untouched(x, node) for x in bare):
                k, v = (self.bare(x, node) for x in bare)
        self.put(node, q, k, v, mask, scale if scale is not None else tensors[0].shape[3] ** -0.5, causal)
        return None

    def refusal(self, out, q, k, v, mask, causal):
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        shown = _value(mask)
        tensors = [q, k, v] if mask is None else [q, k, v, shown]
        if not all(type(t) is FakeTensor for t in tensors):
            return "tensors of a class of their own"
        if out.dtype not in _TYPES or not out.dtype == q.dtype == k.dtype == v.dtype:
            return f"attention of {q.dtype} with a result of {out.dtype}"
        if q.device.type not in ("cpu", "cuda") or any(t.device != q.device for t in tensors):
            return f"attention on {q.device}"
        if any(t.dim() != 4 for t in (q, k, v)):
            return f"{q.dim()} dimensions in place of 4"
        if not all(isinstance(t.shape[i], int) and t.shape[i] > 0 for t in (q, k, v) for i in (1, 3)):
            return "heads or their size are no constant"
        if not (_same(q.shape[0], k.shape[0]) and _same(q.shape[0], v.shape[0]) and _same(k.shape[2], v.shape[2])):
            return "batches or lengths that are not known to be equal"
        if not all(statically_known_true(s > 0) for s in (q.shape[0], q.shape[2], k.shape[2])):
            return "a size that may be 0"
        if causal and mask is not None:
            return "a mask beside is_causal"
        if causal and not _same(q.shape[2], k.shape[2]):
            return "is_causal over keys that are not known to be as many as the queries"
        if mask is None:
            return None
        if shown.dtype not in _MASKS:
            return f"a mask of {shown.dtype}"
        if not 2 <= shown.dim() <= 4:
            return f"a mask of {shown.dim()} dimensions"
        if shown.dim() > 2 and not any(_same(shown.shape[-3], n) for n in (1, q.shape[1])):
            return "a mask whose heads are no constant"
        return None

    def bare(self, node, user):
        """What a copy made for its layout was made of."""
        while _name(node) == "contiguous" and _first(node) and self.untouched(_first(node), user):
            node = _first(node)
        return node

    def put(self, node, q, k, v, mask, scale, causal):
        shape, m = _value(q).shape, _value(k).shape[2]
        device = _value(q).device
        key = str((shape[0], shape[2], m, device))
        with self.graph.inserting_before(node):
            if key not in self.indices:
                b, n, keys = (self.graph.call_method("size", (x, i)) for x, i in ((q, 0), (q, 2), (k, 2)))
                self.indices[key] = self.graph.call_function(_index, (b, n, keys, q))
            # bhnd in memory, where that is what the graph was made with
            dense = _same(_value(node).stride(2), _value(node).shape[3])
            args = q, k, v, mask, self.indices[key], scale, causal, device.type == "cuda", dense
            new = self.graph.call_function(_attention, args)
        new.meta = dict(node.meta)
        self.order[new] = self.order[node]
        node.replace_all_uses_with(new)
        before = node.all_input_nodes
        self.graph.erase_node(node)
        for x in before:
            self.drop(x)
        self.result.parts["attention"] += 1

    def drop(self, node):
        """Take away a copy that nobody reads now, and what led to it. (FX's own elimination of dead code
        would take writes in place along.)"""
        while node is not None and not node.users and _name(node) in _MADE:
            before = _first(node)
            self.graph.erase_node(node)
            node = before

    def projections(self, node, q, k, v):
        """The linears behind q, k and v in one, where they share their input."""
        turned = [False, False]
        linears = []
        for i, x in enumerate((q, k, v)):
            x, rope = _back(x)
            if i < 2:
                turned[i] = rope
            linears.append(x)
        if all(turned):
            self.result.parts["rope"] += 1
        if not all(linears) or len(set(linears)) != 3:
            return
        device = _value(linears[0]).device.type
        if not (device == "cuda" if self.linears is None else self.linears):
            return
        first, last = (pick(linears, key=self.order.get) for pick in (min, max))
        parts = [_linear_args(x) for x in linears]
        x, rows = parts[0][0], _value(parts[0][0])
        whole = all(p[0] is x and _joins(rows, p, linear) for p, linear in zip(parts, linears))
        ready = all(self.order[a] < self.order[first] for p in parts for a in p if a is not None)
        if not (whole and ready and self.untouched(first, last)):
            return
        with self.graph.inserting_before(first):
            new = self.graph.call_function(_projections, (x, [p[1] for p in parts], [p[2] for p in parts]))
            slices = [self.graph.call_function(operator.getitem, (new, i)) for i in range(3)]
        self.order[new] = self.order[first]
        for linear, part in zip(linears, slices):
            part.meta = dict(linear.meta)
            self.order[part] = self.order[linear]
            linear.replace_all_uses_with(part)
            self.graph.erase_node(linear)
        self.result.parts["projections"] += 1


def _repeated(node):
    """What heads were repeated from, one after the other as grouped attention wants it; else None."""
    made, base = _value(node), None
    name = _name(node)
    if not isinstance(made, torch.Tensor):
        return None
    if name == "repeat_interleave":
        given = dict(zip(("x", "repeats", "dim"), node.args), **node.kwargs)
        if isinstance(given.get("repeats"), int) and given.get("dim") in (1, -3) and "output_size" not in given:
            base = _first(node)
    elif name in ("reshape", "view") and _name(_first(node)) == "expand":
        wide = _first(node)
        inner = _first(wide)
        if _name(inner) == "unsqueeze" and (tuple(inner.args[1:]) == (2,) or inner.kwargs == {"dim": 2}):
            base = _first(inner)
        elif _name(inner) == "getitem" and isinstance(inner.args[1], tuple):
            if inner.args[1][:3] == (_WHOLE, _WHOLE, None) and all(_plain(s) for s in inner.args[1][3:]):
                base = _first(inner)
        if base is not None:
            a, w = _value(base), _value(wide)
            if a is None or w is None or a.dim() != 4 or w.dim() != 5 or made.dim() != 4:
                return None
            if not all(_same(a.shape[i], w.shape[j]) for i, j in ((0, 0), (1, 1), (2, 3), (3, 4))):
                return None
            if not _same(w.shape[1] * w.shape[2], made.shape[1]):
                return None
    if base is None or not isinstance(_value(base), torch.Tensor) or _value(base).dim() != 4:
        return None
    a = _value(base)
    fits = all(_same(a.shape[i], made.shape[i]) for i in (0, 2, 3)) and isinstance(a.shape[1], int)
    return base if fits and a.shape[1] > 0 and made.shape[1] % a.shape[1] == 0 else None


def _plain(index):
    return isinstance(index, slice) and index == _WHOLE


def _rope(node):
    """x of x * cos + turned(x) * sin, where turned puts the negative second half before the first."""
    if _name(node) != "add" or len(node.args) != 2:
        return None
    products = node.args
    if not all(isinstance(p, torch.fx.Node) and _name(p) == "mul" and len(p.args) == 2 for p in products):
        return None
    for a, b in (products, products[::-1]):
        for turned in b.args:
            if not isinstance(turned, torch.fx.Node) or _name(turned) not in ("cat", "concat"):
                continue
            halves = turned.args[0]
            if not isinstance(halves, (tuple, list)) or len(halves) != 2 or _name(halves[0]) != "neg":
                continue
            for x in a.args:
                if _half(_first(halves[0])) is x and _half(halves[1]) is x:
                    return x
    return None


def _half(node):
    """What a half of the last dimension is of."""
    if not isinstance(node, torch.fx.Node) or _name(node) != "getitem":
        return None
    inner = _first(node)
    return _first(inner) if _name(inner) == "chunk" else inner


_VIEWS = {"view", "reshape", "transpose", "permute", "contiguous", "unflatten"}
_MADE = {"view", "reshape", "expand", "getitem", "unsqueeze", "contiguous", "repeat_interleave"}


def _back(node):
    """The linear behind q, k or v, and whether rope lies between."""
    rope = False
    while isinstance(node, torch.fx.Node):
        node = _repeated(node) or node
        if node.op == "call_function" and node.target is F.linear:
            return node, rope
        x = None if rope else _rope(node)
        if x is not None:
            node, rope = x, True
        elif _name(node) in _VIEWS:
            node = _first(node)
        else:
            break
    return None, rope


def _linear_args(node):
    given = dict(zip(("input", "weight", "bias"), node.args), **node.kwargs)
    return given["input"], given["weight"], given.get("bias")


def _joins(rows, args, linear):
    """Whether a linear may be a part of a wider one: its result is only looked at head by head, so that a
    slice does where a tensor of its own was."""
    y, weight, bias = _value(linear), _value(args[1]), _value(args[2])
    if any(t is None for t in (rows, y, weight)) or y.requires_grad or y.dim() < 2:
        return False
    if not rows.dtype == y.dtype == weight.dtype or y.dtype not in _TYPES:
        return False
    if weight.dim() != 2 or not all(isinstance(s, int) for s in weight.shape):
        return False
    if args[2] is not None and (bias is None or bias.dtype != y.dtype):
        return False
    for user in linear.users:
        heads = _value(user)
        if _name(user) not in ("view", "reshape") or heads.dim() != y.dim() + 1:
            return False
        if not all(_same(heads.shape[i], y.shape[i]) for i in range(y.dim() - 1)):
            return False
    return True


def _inner(module):
    """Attentions in the graphs of submodules: bodies of checkpoints, loops and the like."""
    if module is None:
        return 0
    graphs = {id(m): m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule) and m is not module}
    return sum(n.target is _SDPA for g in graphs.values() for n in g.nodes)


def graph_pass(graph, linears=None):
    """Put the attentions of one of Dynamo's graphs on superop, in place; what was Matched. It may stand in
    torch._inductor.config.pre_grad_custom_pass. linears: whether three projections become one; None
    means on a card, for on a CPU the library's fast rows read packed weights."""
    return _count(_rewrite(graph, linears))


def _rewrite(graph, linears):
    result = _Pass(graph, linears).run()
    if result.matched:
        graph.lint()
    return result


def _count(result):
    global _total
    _total += result
    if result.of:
        log.info("%s", result)
    return result


def backend(gm, example_inputs, *, options=None, **kwargs):
    """The backend "superop" of torch.compile. options: "then" names the backend that goes on (inductor),
    "linears" is graph_pass()'s, any others are the next backend's."""
    from torch._dynamo.backends.registry import lookup_backend

    options = dict(options or {})
    then, linears = options.pop("then", "inductor"), options.pop("linears", None)
    result = _rewrite(gm.graph, linears)
    if result.matched:
        gm.recompile()
    go_on = lookup_backend(then) if isinstance(then, str) else then
    if then == "inductor" and options:
        from torch._inductor.compile_fx import compile_fx

        made = compile_fx(gm, example_inputs, config_patches=options)
    else:
        made = go_on(gm, example_inputs, **kwargs, **({"options": options} if options else {}))
    _count(result)  # not before: Dynamo begins anew where a compiler asks for that, with the same graph
    return made
