#!/bin/sh
# Runs every fuzz target, or minimises the corpora.
#
#   sh tests/fuzz/run.sh BUILD SECONDS     each target for so long, beginning with its corpus; the last line counts targets
#   sh tests/fuzz/run.sh BUILD merge       puts what earlier runs found into tests/fuzz/corpus/, and keeps what is needed of it
#
# BUILD is the folder of a build with FATTN_FUZZ. What a run finds is kept there: BUILD/found/WHAT/ has inputs that took new
# branches, and BUILD/crashes/WHAT/ those that ended the process.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd) || exit 1
task=$2
targets='safetensors config settings state tokens tokenizer text checkpoint hf api merge cache'
limits='-timeout=30 -rss_limit_mb=3000'

longest() { # of an input of a target
  case $1 in
    checkpoint | tokenizer | hf) echo 16000 ;;
    api | merge | cache) echo 1024 ;;
    *) echo 4096 ;;
  esac
}

# The path of a file as seen from the root of the repository.
short() { echo "${1#"$root/"}"; }

fuzz() { # fuzz WHAT SECONDS
  program=$build/tests/fuzz/fuzz_$1
  crashes=$build/crashes/$1
  log=$build/found/$1.log
  rm -rf "$crashes"
  mkdir -p "$crashes" "$build/found/$1"
  if "$program" -max_total_time="$2" -max_len="$(longest "$1")" $limits -print_final_stats=1 \
      -artifact_prefix="$crashes/" "$build/found/$1" "$root/tests/fuzz/corpus/$1" >"$log" 2>&1; then
    echo "ok    $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs," \
      "$(sed -n 's/^.* cov: *\([0-9]*\).*/\1/p' "$log" | tail -n 1) branches"
    return 0
  fi
  echo "FAIL  $1; the end of $(short "$log"):"
  grep -vE '^(#[0-9]|INFO:|[[:space:]]*NEW_FUNC|MS:|stat::|0x)' "$log" | tail -n 60
  for input in "$crashes"/*; do
    [ -e "$input" ] && echo "to reproduce: cmake --build --preset fuzz && $(short "$program") $(short "$input")"
  done
  return 1
}

merge() { # merge WHAT
  corpus=$root/tests/fuzz/corpus/$1
  fresh=$build/merged/$1
  rm -rf "$fresh"
  mkdir -p "$fresh" "$corpus" "$build/found/$1"
  "$build/tests/fuzz/fuzz_$1" -set_cover_merge=1 -max_len="$(longest "$1")" $limits "$fresh" "$corpus" "$build/found/$1" \
    >"$build/merged/$1.log" 2>&1 || { echo "FAIL  $1: see $(short "$build/merged/$1.log")"; return 1; }
  rm -rf "$corpus"
  cp -r "$fresh" "$corpus"
  echo "ok    $1: $(ls "$corpus" | wc -l) files, $(cat "$corpus"/* | wc -c) bytes"
}

# Folders of links are made here; a process that crashes does not remove its own.
export TMPDIR="$build/links"
rm -rf "$TMPDIR"
mkdir -p "$TMPDIR"

passed=0 failed=0
for what in $targets; do
  if { [ "$task" = merge ] && merge "$what"; } || { [ "$task" != merge ] && fuzz "$what" "$task"; }; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
