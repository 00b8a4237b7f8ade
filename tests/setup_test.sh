#!/bin/sh
# tools/setup.sh on machines that are not this one: id, dpkg-query, apt-get and sudo are played.
#   tests/setup_test.sh
. "$(dirname "$(realpath "$0")")/lib.sh"
setup=$(realpath "$(dirname "$(realpath "$0")")/../tools/setup.sh")
mkdir "$tmp/bin"
plays() { # NAME BODY
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}
for tool in sh mktemp rm tail sed; do ln -s "$(command -v $tool)" "$tmp/bin/$tool"; done
ends() { # CODE TEXT ARGUMENT...: setup ends so and says this
    want=$1 text=$2
    shift 2
    PATH="$tmp/bin" sh "$setup" "$@" </dev/null >"$tmp/out" 2>&1
    got=$?
    cat "$tmp/out"
    [ $got = "$want" ] || return 1
    if [ -n "$text" ]; then grep -qF -- "$text" "$tmp/out"; else [ ! -s "$tmp/out" ]; fi
}

plays id 'echo 0'
plays apt-get 'echo "$@" >>'"$tmp"'/apt'
plays dpkg-query 'echo installed'
check "where all is there nothing is said" ends 0 "" check
check "and nothing is installed" test ! -e "$tmp/apt"
plays dpkg-query 'case "$*" in *clang-tidy*) echo unknown ;; *) echo installed ;; esac'
check "root gets what is missing, no more" ends 0 "setup: installing clang-tidy" check
check "by apt-get" grep -qx "install -y --no-install-recommends clang-tidy" "$tmp/apt"
check "a build needs no clang-tidy" ends 0 "" build
check "--ask installs nothing" ends 1 "apt-get install -y --no-install-recommends clang-tidy" check --ask
plays apt-get 'echo "E: no network" >&2; exit 100'
check "a failure of apt-get is shown" ends 1 "E: no network" check
plays id 'echo 1000'
check "without root and sudo the line to run is said" ends 1 "run this as root" check
plays sudo 'exit 1'
check "a sudo that refuses, too" ends 1 "run this as root" check
plays sudo '[ "$1" = -n ] && shift; exec "$@"'
plays true 'exit 0'
plays apt-get 'echo "$@" >>'"$tmp"'/sudo-apt'
check "sudo installs" ends 0 "setup: installing clang-tidy" check
check "through apt-get" grep -q "clang-tidy" "$tmp/sudo-apt"
rm "$tmp/bin/dpkg-query"
check "another system is told what is needed" ends 0 "no Debian system" check
report
