#!/bin/sh
# Two ranks on two GPUs, by NCCL: against one GPU with as many micro-batches, with shared moments, with shared sequences; resuming on one
# GPU; a rank that is killed. Skipped where there are not two GPUs with NCCL.
#
#   sh tests/cuda/ranks.sh build/release/cli/fattn
set -u
fattn=${1:?program}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
complain() { echo "FAILED: $*" >&2; failed=1; }
skip() { echo "skipped: $1"; echo '0 passed, 0 failed, 1 skipped'; exit 0; }

[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || skip 'fewer than two GPUs'
port=$((20000 + $$ % 20000))

# Both ranks, of which the second runs in the background as $other; $status is the first's.
two() {
  port=$((port + 1))
  RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$fattn" "$@" 2>"$dir/err1" &
  other=$!
  RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$fattn" "$@" 2>"$dir/err"
  status=$?
  wait $other || complain "rank 1: $*: $(tail -3 "$dir/err1")"
  [ $status -eq 0 ] || complain "rank 0: $*: $(tail -3 "$dir/err")"
}
one() { "$fattn" "$@" 2>"$dir/err" || complain "$*: $(tail -3 "$dir/err")"; }
base='train --device cuda --flash --batch 2 --seq 128 --eval-every 10 --eval-batches 4 --sample-every 0 --lr 3e-4 --world-lines 2000
  --schedule constant --check-ranks 5'
same() { cmp -s "$dir/$1/model.safetensors" "$dir/$2/model.safetensors"; }
near() { # near A B BOUND: the losses of two logs
  python3 - "$dir/$1" "$dir/$2" "$3" <<'P' || complain "$1 and $2: the losses differ"
import json, sys
a, b = ([e for e in map(json.loads, open(path)) if "loss" in e] for path in sys.argv[1:3])
worst = max(abs(x[k] / y[k] - 1) for x, y in zip(a, b) for k in ("loss", "val_loss") if k in x)
print("%s and %s: losses differ by %.1e at most" % (*(p.split("/")[-1] for p in sys.argv[1:3]), worst))
sys.exit(not (len(a) == len(b) > 9 and worst < float(sys.argv[3])))
P
}

two $base --steps 2
grep -q 'there is no NCCL' "$dir/err" && skip 'there is no NCCL'

for dtype in f32 bf16; do
  one $base --dtype $dtype --steps 20 --accumulate 2 --out "$dir/one_$dtype" --log "$dir/one_$dtype.log"
  two $base --dtype $dtype --steps 20 --out "$dir/two_$dtype" --log "$dir/two_$dtype.log"
  two $base --dtype $dtype --steps 20 --out "$dir/zero_$dtype" --log "$dir/zero_$dtype.log" --zero
  near one_$dtype.log two_$dtype.log 1e-6
  same one_$dtype two_$dtype && echo "$dtype: the bits of one GPU" || complain "$dtype: other bits than one GPU's"
  same two_$dtype zero_$dtype || complain "$dtype: other bits with --zero"
done
one $base --steps 20 --log "$dir/whole.log"
two $base --steps 20 --log "$dir/context.log" --context 2
near whole.log context.log 1e-5
one $base --dtype bf16 --steps 20 --log "$dir/whole_bf16.log"
two $base --dtype bf16 --steps 20 --log "$dir/context_bf16.log" --context 2
near whole_bf16.log context_bf16.log 1e-2

# Documents of very different lengths: as many targets in each micro-batch as there are.
python3 - "$dir/packed.bin" <<'P'
import array, random, sys
draw, tokens = random.Random(7), []
while len(tokens) < 100000:
    kind = draw.random()
    tokens += [255] * 600 if kind < 0.05 else [draw.randrange(250) for _ in range(draw.randrange(1, 20 if kind < 0.7 else 900))] + [255]
array.array("H", tokens).tofile(open(sys.argv[1], "wb"))
P
packed="$base --data $dir/packed.bin --vocab 256 --eot 255 --documents --steps 20 --batch 1"
one $packed --accumulate 2 --out "$dir/one_packed" --log "$dir/one_packed.log"
two $packed --out "$dir/two_packed" --log "$dir/two_packed.log" --zero
near one_packed.log two_packed.log 1e-6
same one_packed two_packed || complain 'packed documents: other bits than one GPU'
two $packed --accumulate 2 --log "$dir/packed_context.log" --context 2
near one_packed.log packed_context.log 1e-5

# 10 steps on two GPUs and 10 on one are 20 on one.
two $base --steps 10 --zero --out "$dir/parts"
one train --resume "$dir/parts" --accumulate 2 --steps 20
same one_f32 parts || complain 'resumed on one GPU: other bits'

# Rank 1 gets a signal in the middle of a step: rank 0 ends soon, and says so.
hurt() { # hurt SIGNAL WHAT-RANK-0-SAYS FOLDER ARGUMENTS...
  signal=$1 says=$2 folder=$3
  shift 3
  port=$((port + 1))
  RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_PORT=$port "$fattn" $base --steps 1000000 "$@" 2>"$dir/err1" &
  other=$!
  RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=$port "$fattn" $base --steps 1000000 --save-every 5 --out "$dir/$folder" "$@" \
    2>"$dir/err" &
  first=$!
  tries=0
  until [ -f "$dir/$folder/state.json" ] || [ $tries -gt 200 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
  kill -"$signal" $other
  before=$(date +%s)
  wait $first
  status=$? took=$(($(date +%s) - before))
  kill -KILL $other 2>/dev/null
  wait $other 2>/dev/null
  [ $status -eq 1 ] || complain "$signal to rank 1, but rank 0's exit code is $status: $(tail -3 "$dir/err")"
  [ $took -lt 10 ] || complain "$signal to rank 1, and rank 0 went on for $took s"
  grep -q "$says" "$dir/err" || complain "$signal to rank 1, and rank 0 says: $(tail -3 "$dir/err")"
}
hurt STOP 'rank 1 is missing in step' hung --rank-timeout 3
hurt KILL 'rank 1 ended too early' killed
"$fattn" eval --model "$dir/killed" --device cuda --max-tokens 1000 >/dev/null 2>"$dir/err" || complain "the checkpoint: $(cat "$dir/err")"

if [ $failed -eq 0 ]; then echo '1 passed, 0 failed, 0 skipped'; else echo '0 passed, 1 failed, 0 skipped'; fi
exit $failed
