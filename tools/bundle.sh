#!/bin/sh
# make bundle: one archive with superop, its kernels and the libraries it needs beside glibc, that runs
# on another x86-64 Linux with an NVIDIA driver or without, and with the glibc that the files in it ask for:
# 2.34 or newer where it is made on Debian 12.
#   tools/bundle.sh BUILD_FOLDER [PROGRAM...]      BUILD_FOLDER/superop-VERSION-linux-x86_64.tar.xz
# PROGRAM: further programs of the build, for tests on the other machine.
set -e
build=${1:?usage: tools/bundle.sh BUILD_FOLDER [PROGRAM...]}
shift
version=$(sed -n 's/^project(superop VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=superop-$version-linux-x86_64
room=$build/bundle/$name
rm -rf "$build/bundle"
mkdir -p "$room/bin" "$room/lib"

for program in "$build/superop" "$@"; do
    strip -o "$room/bin/$(basename "$program")" "$program"
    # glibc is the other machine's own; everything else comes along
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|ld-linux-x86-64)\.so\.[0-9]+$' |
        while read -r library; do strip -o "$room/lib/$(basename "$library")" "$library"; done
done
# The words that CUTLASS wants beside what was made of its headers.
cutlass=$(sed -n 's/^SOP_CUTLASS:PATH=//p' "$build/CMakeCache.txt")
if [ -n "$cutlass" ]; then
    for license in "$cutlass"/../../../nvidia_cutlass-*.dist-info/licenses/LICENSE.txt "$cutlass"/../LICENSE.txt; do
        [ ! -f "$license" ] || break
    done
    [ -f "$license" ] || { echo "bundle: no LICENSE.txt of CUTLASS beside $cutlass" >&2 && exit 1; }
    cp "$license" "$room/LICENSE.CUTLASS"
fi
# It looks at the C library first, which the loader would only say in its own words.
oldest=$(objdump -T "$room"/bin/* "$room"/lib/* | sed -n 's/.*(\?GLIBC_\(2\.[0-9]*\).*/\1/p' | sort -uV | tail -1)
sed "s/NEEDED/$oldest/" >"$room/superop" <<'EOF'
#!/bin/sh
needed=NEEDED
here=$(dirname "$(readlink -f "$0")")
have=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
if [ "$(printf '%s\n' $needed "${have:-0}" | sort -V | head -1)" != $needed ]; then
    echo "superop: this system has glibc ${have:-in no known version}, $needed or newer is needed" >&2
    exit 1
fi
[ "$(basename "$0")" = run-with ] && program=$1 && shift || program=superop
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/bin/$program" "$@"
EOF
chmod +x "$room/superop"
if [ $# -gt 0 ]; then ln -s superop "$room/run-with"; fi # run-with PROGRAM ARGUMENT...
tar -C "$build/bundle" -cJf "$build/$name.tar.xz" "$name"
echo "$build/$name.tar.xz: $(stat -c %s "$build/$name.tar.xz") bytes"
