#!/bin/sh
# What `make bundle` makes of a build runs without anything of this machine but glibc.
#   tests/bundle_test.sh BUILD_FOLDER
build=$(realpath "${1:?usage: bundle_test.sh BUILD_FOLDER}")
. "$(dirname "$(realpath "$0")")/lib.sh"
cd "$(dirname "$(realpath "$0")")/.." || exit 2
tools/bundle.sh "$build" >"$tmp/log" 2>&1
archive=$(sed -n 's/^\(.*\.tar\.xz\): .*/\1/p' "$tmp/log")
small() { [ "$(stat -c %s "$archive")" -lt 60000000 ]; }
check "the archive is under 60 MB" small
mkdir -p "$tmp/far away" && tar -C "$tmp/far away" -xJf "$archive"
superop=$(echo "$tmp/far away"/superop-*/superop)
runs() { env -i PATH=/usr/bin:/bin "$superop" --version | grep -q '^superop 0\.'; }
check "it runs in a folder of any name, without this environment" runs
ln -s "$superop" "$tmp/superop"
linked() { env -i PATH=/usr/bin:/bin "$tmp/superop" ops rmsnorm | grep -q rmsnorm_f32_avx2; }
check "it runs through a link" linked
closed() { # every library but those of glibc comes from the bundle
    ! LD_LIBRARY_PATH=$(dirname "$superop")/lib ldd "$(dirname "$superop")/bin/superop" |
        grep -v "$(dirname "$superop")/lib/" |
        grep -vE 'linux-vdso|ld-linux|/lib(c|m|dl|pthread|rt|resolv)\.so' | grep .
}
check "it holds all libraries that it needs" closed
mkdir "$tmp/old" && printf '#!/bin/sh\necho "glibc 2.31"\n' >"$tmp/old/getconf" && chmod +x "$tmp/old/getconf"
needed=$(objdump -T "$(dirname "$superop")"/bin/* "$(dirname "$superop")"/lib/* | grep -o 'GLIBC_2\.[0-9]*' |
    sort -uV | tail -1 | cut -c 7-)
old() { PATH="$tmp/old:$PATH" says 1 "this system has glibc 2.31, $needed or newer is needed" "$superop" ops; }
check "an older glibc is said, with what the files ask for" old
if [ "$(printf '%s\n' "$(getconf GNU_LIBC_VERSION | cut -c 7-)" 2.36 | sort -V | tail -1)" = 2.36 ]; then
    check "glibc 2.36 is enough" test "$(printf '%s\n' "$needed" 2.36 | sort -V | tail -1)" = 2.36
else
    skip "glibc 2.36 is enough" "it was made on a system with a newer one"
fi
report
