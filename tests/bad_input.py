#!/usr/bin/env python3
"""What superop does with broken files and wrong prompts: one sentence, a non-zero exit, no crash, no hang.

usage: bad_input.py SUPEROP
"""
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUPEROP = os.path.abspath(sys.argv[1])
TINY = Path(__file__).resolve().parent / "data" / "tiny"
TMP = Path(tempfile.mkdtemp())
passed = failed = 0
pool = ThreadPoolExecutor(2)


def superop(*args, stdin=b"", **env):
    """Exit code (negative: a signal; None: it hung), stdout and stderr."""
    try:
        done = subprocess.run([SUPEROP, *map(str, args)], input=stdin, capture_output=True, timeout=60,
                              env={**os.environ, "XDG_CACHE_HOME": str(TMP / "cache"), **env})
    except subprocess.TimeoutExpired:
        return None, "", ""
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def check(sentence, ok, seen=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {sentence}: {seen}"[:600])


def refused(result, codes=(1, 2, 3), text=""):
    """It said one sentence and ended as the help says."""
    code, _, err = result
    return code in codes and err.count("\n") == 1 and text in err and "superop" in err


def run(model, *args, **more):
    return superop("run", "-m", model, "--raw", "-p", "the dog", "-n", "2", "--threads", "1", "--json", *args, **more)


def each(sentence, cases, ok):
    """One test over many cases, two at a time: the first that is not ok is shown."""
    bad = [(name, r) for name, r in pool.map(lambda c: (c[0], c[1]()), cases) if not ok(r)]
    check(f"{sentence} ({len(cases)} cases)", not bad, bad[:1])


# ---- a GGUF, taken apart just enough to break it in a chosen place ---------------------------------


class Gguf:
    def __init__(self, path):
        self.data = bytearray(path.read_bytes())
        self.n_tensors, self.n_keys = struct.unpack_from("<QQ", self.data, 8)
        at = 24
        self.first_key = at
        self.arrays, self.strings = [], []  # where lengths stand
        for _ in range(self.n_keys):
            at = self.value(*self.string(at))
        self.tensors = []  # (name, ndim, dims, type, offset): where each stands
        for _ in range(self.n_tensors):
            name = at
            ndim = self.string(at)[0]
            n = struct.unpack_from("<I", self.data, ndim)[0]
            kind = ndim + 4 + 8 * n
            self.tensors.append((name, ndim, ndim + 4, kind, kind + 4))
            at = kind + 12
        self.header = at

    def string(self, at):
        self.strings.append(at)
        end = at + 8 + struct.unpack_from("<Q", self.data, at)[0]
        return end, None

    def value(self, at, kind):
        if kind is None:
            kind, at = struct.unpack_from("<I", self.data, at)[0], at + 4
        if kind == 8:
            return self.string(at)[0]
        if kind == 9:
            item, n = struct.unpack_from("<IQ", self.data, at)
            self.arrays.append(at + 4)
            at += 12
            for _ in range(n):
                at = self.value(at, item)
            return at
        return at + {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[kind]

    def broken(self, name, fmt, at, value):
        path = TMP / f"{name}.gguf"
        data = bytearray(self.data)
        struct.pack_into(fmt, data, at, value)
        path.write_bytes(data)
        return path


def cut_files():
    for arch in ("llama", "gemma3"):
        whole = (TINY / arch / "model.gguf").read_bytes()
        def one(percent):
            path = TMP / f"cut-{arch}-{percent}.gguf"
            path.write_bytes(whole[: len(whole) * percent // 100])
            result = run(path)
            path.unlink()
            return result
        each(f"{arch}: a GGUF cut at each 1 % is refused",
             [(p, lambda p=p: one(p)) for p in range(100)], lambda r: refused(r, (3,)))


def cut_folders():
    for arch, name in (("qwen2", "model.safetensors"), ("qwen2", "config.json"), ("qwen2", "tokenizer.json"),
                       ("llama", "model-00002-of-00003.safetensors"), ("llama", "model.safetensors.index.json")):
        whole = (TINY / arch / "hf" / name).read_bytes()
        def one(percent):
            folder = TMP / f"cut-{arch}-{name}-{percent}"
            shutil.copytree(TINY / arch / "hf", folder)
            (folder / name).write_bytes(whole[: len(whole) * percent // 100])
            result = run(folder)
            shutil.rmtree(folder)
            return result
        each(f"{arch}: a {name} cut at each 5 % is refused",
             [(p, lambda p=p: one(p)) for p in range(0, 100, 5)], lambda r: refused(r, (3,)))


def missing_files():
    def one(name):
        folder = TMP / f"without-{name}"
        shutil.copytree(TINY / "llama" / "hf", folder)
        (folder / name).unlink()
        return run(folder)
    each("a folder without one of its files is refused",
         [(n, lambda n=n: one(n)) for n in ("config.json", "tokenizer.json", "model-00003-of-00003.safetensors")],
         lambda r: refused(r, (3,)))


def flipped_bits():
    g = Gguf(TINY / "llama" / "model.gguf")
    rng = random.Random(7)
    def one(i, at, bit):
        return run(g.broken(f"flip-{i}", "<B", at, g.data[at] ^ 1 << bit))
    flips = [(rng.randrange(0, 24 if i < 40 else g.header), rng.randrange(8)) for i in range(200)]
    each("a GGUF with one flipped bit in its header answers or is refused",
         [(f, lambda i=i, f=f: one(i, *f)) for i, f in enumerate(flips)],
         lambda r: r[0] == 0 or refused(r))


def huge_counts():
    g = Gguf(TINY / "llama" / "model.gguf")
    huge = 1 << 60
    last = g.tensors[-1]
    places = {"tensors": 8, "keys": 16, "a key's length": g.first_key, "a string": g.strings[1],
              "an array": g.arrays[0], "a tensor's name": last[0], "a dimension": last[2], "an offset": last[4]}
    each("a count of 2^60 is refused", [(name, lambda n=name, at=at: run(g.broken("huge" + n.replace(" ", "-"), "<Q", at, huge)))
                                         for name, at in places.items()], lambda r: refused(r, (3,)))
    each("a count of 2^63 is refused", [(name, lambda n=name, at=at: run(g.broken("most" + n.replace(" ", "-"), "<Q", at, 1 << 63)))
                                         for name, at in places.items()], lambda r: refused(r, (3,)))


def wrong_tensors():
    g = Gguf(TINY / "llama" / "model.gguf")
    first, second = g.tensors[0], g.tensors[1]
    same_place = struct.unpack_from("<Q", g.data, first[4])[0]
    other = 1 if struct.unpack_from("<I", g.data, first[3])[0] == 0 else 0
    check("overlapping tensors are refused", refused(r := run(g.broken("overlap", "<Q", second[4], same_place)), (3,)), r)
    check("a type that is none is refused", refused(r := run(g.broken("type", "<I", first[3], 9999)), (1, 3)), r)
    check("a tensor of another type than its bytes is refused",
          refused(r := run(g.broken("dtype", "<I", first[3], other)), (1, 3)), r)
    for name, at in (("first", first[0]), ("second", second[0])):
        check(f"a missing tensor is refused by name ({name})",
              refused(r := run(g.broken(f"missing-{name}", "<B", at + 8, ord("X"))), (3,)), r)
    check("another version is refused", refused(r := run(g.broken("version", "<I", 4, 77)), (1, 3)), r)
    check("another file is refused", refused(r := run(Path(__file__)), (3,)), r)
    check("a folder that holds no model is refused", refused(r := run(TMP), (3,)), r)
    header = struct.unpack_from("<Q", (TINY / "qwen2" / "hf" / "model.safetensors").read_bytes())[0]
    def folder(change):
        path = Path(tempfile.mkdtemp(dir=TMP)) / "hf"
        shutil.copytree(TINY / "qwen2" / "hf", path)
        data = (path / "model.safetensors").read_bytes()
        index = json.loads(data[8:8 + header])
        change(index)
        text = json.dumps(index).encode()
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + header:])
        return run(path)
    names = [n for n in json.loads((TINY / "qwen2" / "hf" / "model.safetensors").read_bytes()[8:8 + header]) if n != "__metadata__"]
    def overlap(i):
        i[names[1]]["data_offsets"] = i[names[0]]["data_offsets"]
    def dtype(i):
        i[names[0]]["dtype"] = "F64"
    def shape(i):
        i[names[0]]["shape"] = [1 << 60, 1 << 60]
    def missing(i):
        del i[names[0]]
    for what in (overlap, dtype, shape, missing):
        check(f"safetensors: {what.__name__} is refused", refused(r := folder(what), (3,)), r)


def prompts():
    model = TINY / "llama" / "model.gguf"
    ask = ("run", "-m", model, "--raw", "--threads", "1")
    long = "the dog and " * 3000
    cases = [
        ("an empty prompt", superop(*ask, "-p", ""), "empty"),
        ("an empty file", superop(*ask, "-f", "/dev/null"), "empty"),
        ("no prompt", superop(*ask), "give -p, -f or --chat"),
        ("broken UTF-8", superop(*ask, "-p", b"ab\xffc".decode("utf-8", "surrogateescape")), "byte 0xff at 2 of 4"),
        ("an overlong form", superop(*ask, "-f", "-", stdin=b"\xc0\x80"), "byte 0xc0 at 0"),
        ("half a character at the end", superop(*ask, "-f", "-", stdin="é".encode()[:1]), "at 0 of 1"),
        ("a prompt over the context", superop(*ask, "-p", long), "the context"),
        ("a prompt over --ctx", superop(*ask, "-p", "the dog and the dog and the dog", "--ctx", "4"), "the context of 4"),
        ("a file that is not there", superop(*ask, "-f", "/no/such"), "/no/such"),
        ("a folder as a prompt", superop(*ask, "-f", "/"), "/"),
        ("a wrong temperature", superop(*ask, "-p", "x", "--temperature", "hot"), "must be a number"),
        ("a wrong count", superop(*ask, "-p", "x", "-n", "-1"), "from 0 to"),
        ("a wrong type of KV", superop(*ask, "-p", "x", "--kv", "q8"), "f16|f32|i8|f8"),
        ("a wrong device", superop(*ask, "-p", "x", "--device", "gpu"), "must be one of cpu"),
        ("a configuration that is not there", superop(*ask, "-p", "x", "--config", "/no/such.yaml"), "/no/such.yaml"),
        ("no model", superop("run", "-p", "x"), "-m MODEL is missing"),
        ("an id outside the vocabulary", superop("detokenize", "-m", model, "99999999"), "outside the vocabulary"),
        ("an id that is none", superop("detokenize", "-m", model, "1x"), "not a token id"),
    ]
    for name, result, text in cases:
        check(f"{name} is said in one sentence", refused(result, (2, 3), text), result)
    bad = TMP / "bad.yaml"
    bad.write_text("engine:\n  modules: {ropes: true}\n")
    check("a wrong key of a configuration is said with its line",
          refused(r := superop(*ask, "-p", "x", "--config", bad), (3,), "2"), r)


def caches():
    (TMP / "file").write_text("")
    r = run(TINY / "llama" / "model.gguf", XDG_CACHE_HOME=str(TMP / "file"))
    check("a cache that cannot be written costs a warning, not the answer", r[0] == 0, r)
    r = run("smollm2-135m", XDG_CACHE_HOME=str(TMP / "file"))
    check("a model that is not pulled is said", refused(r, (3,), "superop pull smollm2-135m"), r)


r = run(TINY / "llama" / "model.gguf")
check("the whole file answers", r[0] == 0, r)
for part in (cut_files, cut_folders, missing_files, flipped_bits, huge_counts, wrong_tensors, prompts, caches):
    part()
shutil.rmtree(TMP)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
