"""torch.ops.superop: schemas and fakes, made from the adapter's table; the kernels are the adapter's.

A line of the table says an operator's arguments with their extents by name. The schema is these
arguments; the fake computes the outputs' shapes with the same names, so that symbolic shapes pass
through it untouched."""

import re

import torch

from . import _lib

_OPERAND = re.compile(r"(\w+)([?!%]?)(?:\{\w+=\d+\})?\[([^\]]*)\](?::(\w+))?$")
_SCALAR = re.compile(r"(\w+)(?:>(\w+))?(?:=(.*))?$")
_RULE = re.compile(r"(\w+):=(.*)$")
# Types that the library fixes for outputs, beside float32.
_INTEGERS = {"ids", "counts", "perm", "count"}
# Types by their number in the library (sop/types.h), where an argument is one.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


class _Dim:
    """One extent: how many leading dimensions of the tensor it stands for, and its expression."""

    def __init__(self, text):
        self.star = text.count("*") if text == "**" else int(text.startswith("*"))
        self.text = "" if text == "**" else text.lstrip("*")
        self.code = compile(self.text.replace("/", "//"), "<superop>", "eval") if self.text else None
        self.bare = self.text.isidentifier()


class Operand:
    def __init__(self, name, mark, dims, like):
        self.name, self.like = name, like
        self.optional, self.written, self.packed = mark == "?", mark == "!", mark == "%"
        self.dims = [_Dim(d) for d in dims.split(",")]
        self.star = self.dims[0].star > 0


class Scalar:
    def __init__(self, name, field, default):
        self.name, self.field, self.default = name, field or name, default
        self.is_float = default is not None and any(c in default for c in ".e")


class Op:
    """A line of the table."""

    def __init__(self, line):
        left, _, right = line.partition("->")
        self.name, self.op, *words = left.split()
        self.args, self.rules = [], []
        for word in words:
            if rule := _RULE.match(word):
                self.rules.append((rule[1], compile(rule[2].replace("/", "//"), "<superop>", "eval")))
            elif operand := _OPERAND.match(word):
                self.args.append(Operand(*operand.groups()))
            else:
                self.args.append(Scalar(*_SCALAR.match(word).groups()))
        self.outs = [Operand(*_OPERAND.match(word).groups()) for word in right.split()]

    def schema(self, out=False):
        def one(i, a):
            if isinstance(a, Scalar):
                text = f"{'float' if a.is_float else 'int'} {a.name}"
                return text if a.default is None else f"{text}={a.default}"
            if a.written:
                return f"Tensor({chr(97 + i)}!) {a.name}"
            return f"Tensor? {a.name}=None" if a.optional else f"Tensor {a.name}"

        args = [one(i, a) for i, a in enumerate(self.args)]
        if out:
            args += ["*"] + [f"Tensor({chr(65 + i)}!) {o.name}" for i, o in enumerate(self.outs)]
            return f"{self.name}.out({', '.join(args)}) -> ()"
        result = ", ".join("Tensor" for _ in self.outs)
        return f"{self.name}({', '.join(args)}) -> {result if len(self.outs) == 1 else f'({result})'}"

    def dtype(self, out, given):
        if out.like:
            like = next(a for a in self.args if a.name == out.like)
            if isinstance(like, Scalar):
                return _TYPES[given.get(out.like, int(like.default))]
            return given[out.like].dtype
        if out.name == "codes":
            return torch.float8_e4m3fn
        if out.name in _INTEGERS:
            return torch.int32
        doubles = any(isinstance(v, torch.Tensor) and v.dtype is torch.float64 for v in given.values())
        return torch.float64 if doubles else torch.float32

    def fake(self, *values, **named):
        """The outputs, empty: what the kernel would return for these arguments."""
        given = dict(zip((a.name for a in self.args), values), **named)
        names, lead = {}, None
        for a in self.args:
            value = given.get(a.name)
            if isinstance(a, Scalar):
                if value is None:
                    value = a.default
                if isinstance(value, int) and not isinstance(value, bool) and value != 0:
                    names.setdefault(a.field, value)
                continue
            if value is None:
                continue
            inner = len(a.dims) - (1 if a.star else 0)
            if a.star:
                lead = list(value.shape[: value.dim() - inner]) if lead is None else lead
            for i, d in enumerate(a.dims[1:] if a.star else a.dims):
                if d.bare and not (a.packed and i == inner - 1):
                    names.setdefault(d.text, value.shape[value.dim() - inner + i])
        for name, code in self.rules:
            if name not in names:
                names[name] = eval(code, {}, names)
        made = []
        devices = {v.device for v in given.values() if isinstance(v, torch.Tensor)}
        if len(devices) > 1:
            raise RuntimeError(f"{self.name}: operands on {' and '.join(sorted(map(str, devices)))}")
        device = devices.pop()
        for o in self.outs:
            shape = list(lead) if o.star else []
            for d in o.dims[1:] if o.star else o.dims:
                shape.append(eval(d.code, {}, names))
            made.append(torch.empty(shape, dtype=self.dtype(o, given), device=device))
        return made[0] if len(made) == 1 else tuple(made)


table = {}
library = torch.library.Library("superop", "DEF")  # dropped, it would take the operators along
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


def _define():
    for line in _lib.lines():
        op = table[line.split()[0]] = Op(line)
        library.define(op.schema(), tags=_TAGS)
        torch.library.register_fake(f"superop::{op.name}", op.fake if op.outs else _nothing, lib=library)
        if op.outs:
            library.define(op.schema(out=True), tags=_TAGS)
            torch.library.register_fake(f"superop::{op.name}.out", _nothing, lib=library)
    _lib.register()


def _nothing(*args, **kwargs):
    return None


_define()
