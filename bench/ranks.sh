#!/bin/sh
# Tokens per second of a model of 124 million parameters (12 layers, 768 wide, sequences of 1024, bf16, flash) on one GPU and on
# several: the medians of the last two thirds of the steps.
#
#   sh bench/ranks.sh build/release/cli/fattn [GPUS [STEPS [BATCH]]]
set -eu
fattn=${1:?program} gpus=${2:-2} steps=${3:-30} batch=${4:-16}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
port=$((20000 + $$ % 20000))
model='--layers 12 --hidden 768 --heads 12 --heads-kv 12 --head-dim 64 --ffn 2048 --vocab 50304 --seq 1024 --tied'
train="train $model --batch $batch --steps $steps --warmup 10 --lr 3e-4 --world-lines 50000 --device cuda --dtype bf16 --flash
  --eval-every 0 --sample-every 0"

measure() { # measure RANKS NAME OPTION...
  ranks=$1 name=$2
  shift 2
  port=$((port + 1)) rank=$((ranks - 1))
  while [ $rank -gt 0 ]; do
    RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank MASTER_PORT=$port "$fattn" $train "$@" 2>"$dir/err$rank" &
    rank=$((rank - 1))
  done
  RANK=0 WORLD_SIZE=$ranks LOCAL_RANK=0 MASTER_PORT=$port "$fattn" $train --log "$dir/log" "$@" 2>"$dir/err0" ||
    { cat "$dir"/err*; exit 1; }
  wait
  python3 - "$dir/log" "$name" "$ranks" <<'P'
import json, statistics, sys
entries = [e for e in map(json.loads, open(sys.argv[1])) if "loss" in e]
late = entries[len(entries) // 3:]
print("%-32s %d GPUs  %9.0f tok/s  %7.2f ms a step  %6.2f GB" %
      (sys.argv[2], int(sys.argv[3]), statistics.median(e["tokens_per_s"] for e in late),
       statistics.median(e["ms"] for e in late), late[-1]["mem_bytes"] * 1e-9), flush=True)
P
}

measure 1 'one'
measure "$gpus" 'a batch each'
measure "$gpus" 'a batch each, --zero' --zero
measure 1 'one, 4 micro-batches' --accumulate 4
measure "$gpus" 'a batch each, 4 micro-batches' --accumulate 4
measure "$gpus" "half of each sequence (--context)" --context "$gpus"
