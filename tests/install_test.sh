#!/bin/sh
# What a user has after make install: a command, headers, a shared and a static library, and a
# pkg-config file with which the examples build.
#   tests/install_test.sh BUILD_FOLDER
root=$(realpath "$(dirname "$0")/..") build=$(realpath "${1:?usage: install_test.sh BUILD_FOLDER}")
. "$root/tests/lib.sh"
check "it installs" cmake --install "$build" --prefix "$tmp/usr"
prefix=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$build/CMakeCache.txt")
check "DESTDIR goes before the prefix" env DESTDIR="$tmp/dest" cmake --install "$build"
check "the prefix stands in superop.pc" \
    grep -rqx "prefix=$prefix" "$tmp/dest" --include=superop.pc
pc=$(dirname "$(find "$tmp/usr" -name superop.pc)")
sed -i "s|^prefix=.*|prefix=$tmp/usr|" "$pc/superop.pc" # installed elsewhere than it was made for
export PKG_CONFIG_PATH="$pc" LD_LIBRARY_PATH="$(dirname "$pc")"
soname_is() { objdump -p "$LD_LIBRARY_PATH/libsuperop.so" | grep -q "SONAME *libsuperop.so.0$"; }
check "the library has a version in its name" soname_is
check "the command runs" "$tmp/usr/bin/superop" ops
flags="-std=c11 -Wall -Wextra -Wpedantic -Werror -O1"
for f in "$root"/examples/c/*.c; do
    name=$(basename "$f" .c)
    check "$name builds with the installed copy" \
        sh -c "cc $flags '$f' -o '$tmp/$name' \$(pkg-config --cflags --libs superop)"
    check "$name builds with the static library" sh -c "cc $flags '$f' -o '$tmp/$name.static' \
        \$(pkg-config --cflags superop) '$LD_LIBRARY_PATH/libsuperop.a' \
        \$(pkg-config --static --libs superop | sed 's/-lsuperop//')"
done
normalises() { "$tmp/$1" && "$tmp/$1" | grep -q "0.3651  0.7303  1.0954  2.9212"; }
check "rmsnorm gives the right rows" normalises rmsnorm
check "rmsnorm gives them statically too" normalises rmsnorm.static
tiny=$(find "$root/tests/data/tiny" -name '*.gguf' | sort | head -1)
check "generate answers" "$tmp/generate" "$tiny" "Once upon a time"
check "generate says what is wrong" says 1 "No such file" "$tmp/generate" /no/such.gguf x
report
