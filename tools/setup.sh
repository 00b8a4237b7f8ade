#!/bin/sh
# What the build and the tests need of the machine, installed where it is missing.
#   tools/setup.sh build          the packages to build and run; as root, or through sudo
#   tools/setup.sh check          those and what the tests need
#   tools/setup.sh build --ask    only say what is missing
build="build-essential ca-certificates cmake ninja-build pkg-config python3-pip libyaml-dev libjansson-dev
    libpcre2-dev libutf8proc-dev libsqlite3-dev libcurl4-openssl-dev libzip-dev"
check="$build clang clang-format clang-tidy libclang-rt-dev python3 python3-dev python3-venv unzip"
case $1 in
build) want=$build ;;
check) want=$check ;;
*) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is no Debian system; cmake will say what is missing of:" $want
    exit 0
fi

missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

line="apt-get update && apt-get install -y --no-install-recommends$missing"
ask() {
    echo "setup: packages are missing; run this as root, then try again:" >&2
    echo "$line" >&2
    exit 1
}
[ "$2" = --ask ] && ask
as_root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || ask
    as_root=sudo
    [ -t 0 ] || as_root="sudo -n" # nobody is there to type a password
    $as_root true 2>/dev/null || ask
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
$as_root sh -c "($line) >$log 2>&1" && rm "$log" && exit 0
tail -3 "$log" >&2
echo "setup: the packages could not be installed; the log is $log" >&2
exit 1
