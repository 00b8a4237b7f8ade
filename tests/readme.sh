#!/bin/sh
# Every command of README.md, pasted: each line of its sh blocks, in order, in one shell's folder.
#   tests/readme.sh
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' README.md >"$tmp/commands"
[ -s "$tmp/commands" ] || { echo "README.md has no commands"; exit 1; }
default=$(sed -n 's/^MODEL = //p' Makefile)
while read -r line; do
    case $line in
    "make run"* | "make check"* | *"make check") skip "$line" "it is what runs this, or more" ;;
    *"apt-get"* | "git clone"* | "cd "* | "sudo "*) skip "$line" "it changes the machine" ;;
    *)
        if echo "$line" | grep -q -- "-m " && ! build/superop info "$default" >/dev/null 2>&1; then
            skip "$line" "$default is not here"
        else
            check "pasted" sh -c "exec </dev/null; $line"
        fi
        ;;
    esac
done <"$tmp/commands"
report
