#!/bin/sh
# Where a tool of the CUDA toolkit is: this machine's, unless it is older than 13, else one from PyPI,
# which goes into the cache. Where the headers of CUTLASS are: there.
#   tools/cuda.sh nvcc|cuobjdump|cutlass     prints the path, or says in one sentence why there is none
tool=$1 list=$(dirname "$0")/cuda_$1.txt
[ -n "$tool" ] && [ -f "$list" ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 2; }

[ "$tool" = cutlass ] || for own in "$(command -v "$tool")" "$CUDA_HOME/bin/$tool" "$CUDA_PATH/bin/$tool" \
    "/usr/local/cuda/bin/$tool"; do
    release=$("$own" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p')
    [ "${release:-0}" -ge 13 ] && echo "$own" && exit
done

# A folder for each list; its name appears when all of it is there.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/superop
room=$cache/cuda-$(sha256sum "$list" | cut -c 1-12)
found=$room/nvidia/cu13/bin/$tool
[ "$tool" = cutlass ] && found=$room/cutlass_library/source/include
[ -e "$found" ] && echo "$found" && exit
mkdir -p "$cache" && new=$(mktemp -d "$cache/cuda.XXXXXX") || exit 1
trap 'rm -rf "$new" "$new.log"' EXIT
if ! timeout 240 python3 -m pip install -q --no-deps --no-cache-dir --only-binary :all: --retries 1 \
    --timeout 20 --root-user-action ignore --target "$new" -r "$list" >"$new.log" 2>&1; then
    why=$(grep -v '^WARNING' "$new.log" | tail -1)
    echo "no $tool of CUDA 13 is on this machine, and pip got none: ${why:-no answer in 240 s}" >&2
    exit 1
fi
# What a linker and cmake look for, which a wheel cannot hold: links.
if [ -d "$new/nvidia/cu13/lib" ]; then
    ln -s lib "$new/nvidia/cu13/lib64"
    ln -s libcudart.so.13 "$new/nvidia/cu13/lib/libcudart.so"
fi
mv -T "$new" "$room" 2>/dev/null # another may have been faster
echo "$found"
