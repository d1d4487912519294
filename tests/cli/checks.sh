# What the scripts beside this file share. Sourced once $fattn is set; makes the folder $dir, for as long as the script runs.
# An error is one line on standard error that begins with "fattn: " and names the option and the value.
dir=$(mktemp -d) || exit 1
out=$dir/out err=$dir/err
trap 'rm -rf "$dir"' EXIT
OMP_WAIT_POLICY=passive
export OMP_WAIT_POLICY
failures=0

complain() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    sed 's/^/    /' "$err" | head -5
}

# wrong WORD ARGUMENTS...: exit code 2, nothing on standard output, one line that has WORD
wrong() {
    word=$1
    shift
    "$fattn" "$@" >"$out" 2>"$err"
    code=$?
    [ $code -eq 2 ] || complain "fattn $*: exit code $code instead of 2"
    [ "$(wc -l <"$err")" -eq 1 ] || complain "fattn $*: not one line"
    grep -q '^fattn: ' "$err" || complain "fattn $*: does not begin with 'fattn: '"
    grep -q -e "$word" "$err" || complain "fattn $*: does not say '$word'"
    [ -s "$out" ] && complain "fattn $*: something on standard output"
}

# works ARGUMENTS...: exit code 0
works() {
    "$fattn" "$@" >"$out" 2>"$err" || complain "fattn $*: exit code $? instead of 0"
}

# right WORD ARGUMENTS...: exit code 0, and standard output has WORD
right() {
    word=$1
    shift
    "$fattn" "$@" >"$out" 2>"$err"
    code=$?
    [ $code -eq 0 ] || complain "fattn $*: exit code $code instead of 0"
    grep -q -e "$word" "$out" || complain "fattn $*: does not print '$word'"
}

# json_lines FILE: every line is one JSON object
json_lines() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys
for line in sys.stdin: assert isinstance(json.loads(line), dict)' <"$1" || complain "$1: not JSON lines"
}

# json ARGUMENTS...: exit code 0, and standard output is JSON lines
json() {
    right '^{.*}$' "$@"
    json_lines "$out"
}

finish() {
    [ $failures -eq 0 ] && echo 'all passed' && exit 0
    echo "$failures failures"
    exit 1
}

# says WORD: the last command said it on standard error
says() {
    grep -q -e "$1" "$err" || complain "standard error does not say '$1'"
}

# same FILE FILE
same() {
    cmp -s "$1" "$2" || complain "$1 and $2 differ"
}
