#!/bin/sh
# What `make demo` shows: trains a small model on the generated world with the flash kernels, evaluates it with every way of
# computing attention, and asks it something. Leaves the model in out/demo. A minute or two on 2 cores.
set -eu
build=${1:-build/release}
fattn=$build/cli/fattn
out=out/demo

say() { printf '\n== %s\n' "$*"; }
show() {
  printf '\n$ fattn'
  for word; do
    case "$word" in
      *[!A-Za-z0-9_./:,=+-]*) printf " '%s'" "$word" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '\n'
  "$fattn" "$@"
}

rm -rf "$out"
mkdir -p out

say 'This machine, and the kernels that can run on it'
show info

say 'What it will learn'
show world --lines 8

say 'Train on it, attention by the flash kernels'
show train --preset tiny --flash --out "$out" --log "$out.jsonl"

say 'The same model, evaluated with each way of computing attention'
echo 'composed and flash are exact, and agree; a window drops keys, and costs more bits the narrower it is.'
show eval --model "$out" --attention composed,flash,window:32,window:16,window:8,window:4

say 'Ask it: a sum and a fact that it was trained on, then a sum and a story of the validation split, which it never saw'
ask() { show generate --model "$out" --attention flash --greedy --stop '\n' --tokens 80 --prompt "$1"; }
ask '12+30='
ask 'Where does Ada live? '
ask '46+39='
ask 'Kim buys a brown kite at the market and goes home. What does Kim have? '
