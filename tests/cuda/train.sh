#!/bin/sh
# The program's trainer on a GPU: the losses of 20 steps against the CPU's, resuming on either device, eval and generate.
# One test, skipped where there is no CUDA driver, no GPU or no cuBLAS.
#
#   sh tests/cuda/train.sh build/release/cli/fattn
set -u
fattn=${1:?program}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
complain() { echo "FAILED: $*" >&2; failed=1; }
run() { "$fattn" "$@" 2>"$dir/err" || complain "$*: $(cat "$dir/err")"; }
train() { run train --batch 2 --seq 128 --eval-every 0 --sample-every 0 --lr 3e-4 --world-lines 2000 "$@"; }

if ! "$fattn" train --device cuda --steps 1 --batch 1 --eval-every 0 --sample-every 0 2>"$dir/err"; then
  reason=$(tail -1 "$dir/err")
  case ${reason#*--device: cuda: } in
    'there is no CUDA driver (libcuda.so.1) here' | 'the CUDA driver sees no GPU' | \
      'the CUDA driver does not start: CUDA_ERROR_NO_DEVICE: '* | \
      'there is no cuBLAS (libcublas.so.13 or libcublas.so.12) here')
      echo "skipped: $reason"
      echo '0 passed, 0 failed, 1 skipped'
      exit 0 ;;
  esac
  complain "one step on the GPU: $(cat "$dir/err")"
  echo '0 passed, 1 failed, 0 skipped'
  exit 1
fi

for attention in composed flash; do
  train --attention $attention --steps 20 --log "$dir/cpu"
  for dtype in f32 bf16; do
    train --attention $attention --steps 20 --log "$dir/$dtype" --device cuda --dtype $dtype
  done
  python3 - "$dir" <<'P' || complain "$attention: the losses differ"
import json, sys
losses = {name: [entry["loss"] for entry in map(json.loads, open(f"{sys.argv[1]}/{name}")) if "loss" in entry]
          for name in ("cpu", "f32", "bf16")}
good = True
for name, bound in (("f32", 1e-4), ("bf16", 1e-2)):
    worst = max(abs(a / b - 1) for a, b in zip(losses[name], losses["cpu"]))
    print("%s: losses of 20 steps differ from the CPU's by %.1e at most" % (name, worst))
    good = good and len(losses[name]) == 20 and worst < bound
sys.exit(not good)
P
done

# What the GPU says of its memory is not lost on the way.
"$fattn" train --device cuda --steps 1 --batch 100000 --seq 1024 --eval-every 0 --sample-every 0 2>"$dir/err"
[ $? -eq 1 ] && grep -q 'CUDA_ERROR_OUT_OF_MEMORY.*, for a step of' "$dir/err" || complain "too large a step: $(cat "$dir/err")"

# 10 steps and 10 are 20; the second half may be on the other device, or in another type.
train --flash --schedule constant --steps 20 --device cuda --out "$dir/whole"
train --flash --schedule constant --steps 10 --device cuda --out "$dir/half"
run train --resume "$dir/half" --steps 20
cmp -s "$dir/whole/model.safetensors" "$dir/half/model.safetensors" || complain 'resumed on the GPU: not the same bits'
# Likewise where products are large enough for algorithms to be tried (4 GFLOP, train/cuda/product.h), by each process anew.
large='train --flash --schedule constant --device cuda --hidden 1024 --heads 8 --heads-kv 4 --head-dim 128 --ffn 2048 --layers 1
  --batch 4 --seq 512 --eval-every 0 --sample-every 0 --lr 3e-4 --world-lines 2000 --peak 900'
for dtype in f32 bf16; do
  run $large --dtype $dtype --steps 6 --out "$dir/whole_$dtype"
  run $large --dtype $dtype --steps 3 --out "$dir/half_$dtype"
  run train --resume "$dir/half_$dtype" --steps 6 --peak 900
  cmp -s "$dir/whole_$dtype/model.safetensors" "$dir/half_$dtype/model.safetensors" || complain "resumed with tried products, $dtype: not the same bits"
done
run train --resume "$dir/half" --steps 22 --device cpu
grep -q "device cpu instead of the checkpoint's cuda" "$dir/err" || complain 'resumed on the CPU: no note'
run train --resume "$dir/half" --steps 24 --device cuda --dtype bf16
grep -q "dtype bf16 instead of the checkpoint's f32" "$dir/err" || complain 'resumed in another type: no note'
grep -q device_name "$dir/f32" && ! grep -q threads_used "$dir/f32" || complain 'the log of a GPU run: no device, or threads'

eval="eval --model $dir/whole --attention composed,flash,block:32 --max-tokens 2000 --json"
run $eval >"$dir/cpu"
run $eval --device cuda >"$dir/f32"
python3 - "$dir" <<'P' || complain 'eval: the losses differ'
import json, sys
cpu, gpu = ([json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{name}")] for name in ("cpu", "f32"))
sys.exit(not (len(gpu) == 3 and max(abs(a - b) for a, b in zip(cpu, gpu)) < 1e-5))
P
run generate --model "$dir/whole" --greedy --ids --tokens 40 --prompt 12+30= >"$dir/cpu"
run generate --model "$dir/whole" --greedy --ids --tokens 40 --prompt 12+30= --device cuda >"$dir/f32"
cmp -s "$dir/cpu" "$dir/f32" || complain 'generate: other tokens on the GPU'

if [ $failed -eq 0 ]; then echo '1 passed, 0 failed, 0 skipped'; else echo '0 passed, 1 failed, 0 skipped'; fi
exit $failed
