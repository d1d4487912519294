#!/bin/sh
# Several ranks under mpirun: the bits of one process with as many micro-batches, with and without shared moments; checkpoints that
# continue with other numbers of ranks; ranks that are killed, stopped or refuse.
#
#   sh tests/train/ranks.sh build/release/cli/fattn build/release/tests/train/train_ring
#
# Ranks that the program cannot have are refused, which is tested anywhere; the rest is skipped where it was built without MPI or
# where there is no OpenMPI to start it.
set -u
fattn=${1:?program} ring=${2:?the program ring.c}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
err=$dir/err
passed=0 failed=0 bad=0
complain() { echo "FAILED: $*" >&2; bad=1; }
section() { # counts the one before
  [ "$1" = first ] || if [ $bad -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  bad=0
}
finish() {
  section last
  echo "$passed passed, $failed failed, $1 skipped"
  exit $((failed > 0))
}

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
# OpenMPI's own memory is not our affair in builds with sanitizers.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
shape='--hidden 32 --layers 3 --heads 4 --heads-kv 2 --head-dim 16 --ffn 48 --seq 32'
base="$shape --batch 2 --world-lines 300 --threads 1 --warmup 2 --schedule constant --sample-every 0"
tiny="train $base --eval-every 5 --eval-batches 5"

ranks() { # ranks N ARGUMENT...
  n=$1
  shift
  timeout 60 mpirun --oversubscribe -n "$n" "$fattn" "$@" 2>"$err"
}
good() { "$@" >/dev/null || complain "$*: $(tail -5 "$err")"; }
alone() { "$fattn" "$@" 2>"$err"; }
same() { # the files of two checkpoints
  for file in model optimizer; do
    cmp -s "$dir/$1/$file.safetensors" "$dir/$2/$file.safetensors" || complain "$1 and $2: $file differs"
  done
}
same_curve() { # the logs of two runs, but for speed and memory
  python3 - "$dir/$1" "$dir/$2" <<'P' || complain "$1 and $2: other losses"
import json, sys
def curve(path):
    entries = [json.loads(line) for line in open(path)]
    return {e["step"]: [e.get(k) for k in ("loss", "grad_norm", "lr", "val_loss")] for e in entries if "loss" in e}
a, b = map(curve, sys.argv[1:])
sys.exit(not a or a != b)
P
}
refused() { # refused TEXT COMMAND...: with exit code 2, and says so
  text=$1
  shift
  "$@" >/dev/null
  status=$?
  [ $status -eq 2 ] || complain "$*: exit code $status, not 2"
  grep -q -e "$text" "$err" || complain "$*: does not say '$text' but: $(tail -5 "$err")"
}
wait_for() { # wait_for COMMAND...: until it succeeds, twenty seconds at most
  tries=0
  until "$@" 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -gt 400 ] && complain "waited in vain: $*" && return
    sleep 0.05
  done
}

a_rank() { # a_rank PROCESS: of the mpirun that this `timeout` has started, the process of its last rank
  ps -o pid= --ppid "$(ps -o pid= --ppid "$1" | tr -d ' ')" | tail -1
}

section first
refused "RANK is 'two', not a number" env RANK=two WORLD_SIZE=2 "$fattn" $tiny 2>"$err"
refused 'RANK is 2, but WORLD_SIZE is 2' env RANK=2 WORLD_SIZE=2 "$fattn" $tiny 2>"$err"
refused 'says rank 1 of 3, but' env SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 "$fattn" $tiny 2>"$err"
case $(cat "$err") in
  *'built without MPI'*) reason='the program was built without MPI' ;;
  *) reason= ;;
esac
mpirun --version 2>/dev/null | grep -q 'Open MPI' || reason=${reason:-no mpirun of OpenMPI}
if [ "$reason" ]; then
  echo "skipped: $reason"
  finish 10
fi

section 'the bits of one process'
for n in 2 3; do
  good alone $tiny --steps 7 --accumulate $n --out "$dir/alone$n" --log "$dir/alone$n.log"
  good ranks $n $tiny --steps 7 --out "$dir/ranks$n" --log "$dir/ranks$n.log" --check-ranks 2
  good ranks $n $tiny --steps 7 --out "$dir/zero$n" --log "$dir/zero$n.log" --zero --check-ranks 2
  same "alone$n" "ranks$n"
  same "alone$n" "zero$n"
  same_curve "alone$n.log" "ranks$n.log"
  same_curve "alone$n.log" "zero$n.log"
done

section 'ranks and micro-batches'
good alone $tiny --steps 8 --accumulate 4 --out "$dir/whole" --log "$dir/whole.log"
good ranks 4 $tiny --steps 8 --out "$dir/four" --recompute --flash
good alone $tiny --steps 8 --accumulate 4 --out "$dir/flash" --flash
same flash four
for how in '--dropout 0.2' '--dtype bf16' '--dtype bf16 --flash --dropout 0.2'; do
  good alone $tiny --steps 4 --accumulate 2 --out "$dir/with_alone" $how
  good ranks 2 $tiny --steps 4 --out "$dir/with_ranks" $how --zero
  same with_alone with_ranks
done

section 'the guard stops all ranks'
# What is left behind is the batch of all ranks.
leap="$tiny --steps 400 --lr 1e-2 --spike 0.1 --guard stop"
alone $leap --accumulate 2 --out "$dir/leap_alone" >/dev/null && complain 'no leap'
ranks 2 $leap --out "$dir/leap_ranks" >/dev/null && complain 'no leap among ranks'
cmp "$dir/leap_alone/stopped/batch.safetensors" "$dir/leap_ranks/stopped/batch.safetensors" >&2 || complain 'other batches are left behind'
same leap_alone/stopped leap_ranks/stopped
refused 'replayed by one rank' ranks 2 $tiny --steps 41 --replay "$dir/leap_alone/stopped/batch.safetensors"

section 'continued with other numbers of ranks'
good ranks 2 $tiny --steps 3 --accumulate 2 --out "$dir/parts" --log "$dir/parts.log" --zero
good ranks 4 train --resume "$dir/parts" --accumulate 1 --steps 5 --log "$dir/parts.log" --zero
good alone train --resume "$dir/parts" --accumulate 4 --steps 6 --log "$dir/parts.log"
good ranks 2 train --resume "$dir/parts" --accumulate 2 --steps 8 --log "$dir/parts.log"
same whole parts
python3 - "$dir/whole.log" "$dir/parts.log" <<'P' || complain 'the curve is another'
import json, sys
a, b = ([e["loss"] for e in map(json.loads, open(path)) if "loss" in e] for path in sys.argv[1:])
sys.exit(not (len(a) == 8 and a == b))
P

section 'a rank that is killed'
# Away from any step's end, then while checkpoints are written all the time.
for every in 4 1; do
  run=$dir/killed$every
  timeout 60 mpirun --oversubscribe -n 2 "$fattn" $tiny --steps 100000 --accumulate 2 --save-every $every --out "$run" 2>"$err" >/dev/null &
  wait_for test -f "$run/state.json"
  [ $every -eq 4 ] || sleep 0.3
  before=$(date +%s)
  kill -KILL $(a_rank $!)
  wait $!
  status=$? took=$(($(date +%s) - before))
  [ $status -ne 0 ] || complain 'a rank was killed, but the exit code is 0'
  [ $took -lt 10 ] || complain "a rank was killed, and the others went on for $took s"
  step=$(sed -n 's/^"step":\([0-9]*\).*/\1/p' "$run/state.json")
  [ "${step:-0}" -gt 0 ] || complain 'no checkpoint that was whole'
  until=$((step + 3))
  good alone $tiny --steps $until --accumulate 4 --out "$dir/through$every"
  good ranks 4 train --resume "$run" --accumulate 1 --steps $until
  same "through$every" "killed$every"
done

section 'a rank that is asked to stop'
timeout 60 mpirun --oversubscribe -n 2 "$fattn" $tiny --steps 100000 --save-every 1 --out "$dir/stopped" 2>"$err" >/dev/null &
wait_for test -f "$dir/stopped/state.json"
kill -TERM $(a_rank $!)
wait $! || complain "asked to stop, but: $(tail -5 "$err")"
step=$(sed -n 's/^"step":\([0-9]*\).*/\1/p' "$dir/stopped/state.json")
good alone $tiny --steps "$step" --accumulate 2 --out "$dir/not_stopped"
same stopped not_stopped

section 'ranks that refuse'
refused 'different options' timeout 60 mpirun --oversubscribe -n 1 "$fattn" $tiny --lr 1e-3 : -n 1 "$fattn" $tiny --lr 2e-3 2>"$err"
refused 'no_such_folder' ranks 2 $tiny --steps 3 --log "$dir/no_such_folder/log"
refused 'window' ranks 2 $tiny --steps 3 --attention window:0

section 'parameters that come to differ'
# One rank begins from other weights.
good alone $tiny --steps 1 --accumulate 2 --out "$dir/one"
good alone $tiny --steps 1 --accumulate 2 --out "$dir/other" --lr 5e-3
timeout 60 mpirun --oversubscribe -n 1 "$fattn" train --resume "$dir/one" --lr 1e-3 --accumulate 1 --steps 4 --out "$dir/x" --check-ranks 1 \
  : -n 1 "$fattn" train --resume "$dir/other" --lr 1e-3 --accumulate 1 --steps 4 --out "$dir/x" --check-ranks 1 2>"$err" >/dev/null
status=$?
[ $status -eq 1 ] || complain "parameters differ, but the exit code is $status"
grep -q "ranks' parameters differ" "$err" || complain "parameters differ, but: $(tail -5 "$err")"

section 'sequences that ranks share'
for n in 1 2 4; do
  timeout 60 mpirun --oversubscribe -n $n "$ring" 2>"$err" || complain "ring attention on $n ranks: $(tail -5 "$err")"
done
long="$tiny --seq 64 --steps 10 --flash"
close_curve() { # losses within 1e-6 of each other
  python3 - "$dir/$1" "$dir/$2" <<'P' || complain "$1 and $2: losses differ"
import json, sys
a, b = ([e for e in map(json.loads, open(path)) if "loss" in e] for path in sys.argv[1:])
worst = max(abs(x[k] / y[k] - 1) for x, y in zip(a, b) for k in ("loss", "val_loss") if k in x)
print("%s: losses differ by %.1e at most" % (sys.argv[2].split("/")[-1], worst))
sys.exit(not (len(a) == len(b) == 10 and worst < 1e-6))
P
}
good alone $long --log "$dir/long.log"
for n in 2 4; do
  good ranks $n $long --context $n --log "$dir/context$n.log" --check-ranks 5
  close_curve long.log context$n.log
done
good alone $long --accumulate 2 --log "$dir/long2.log" --out "$dir/long2"
good ranks 4 $long --context 2 --zero --recompute --log "$dir/groups.log" --check-ranks 5
close_curve long2.log groups.log
refused '4, not a multiple' ranks 4 $long --context 3
refused '8 chunks' ranks 4 $tiny --seq 36 --context 4
refused 'exact and causal' ranks 2 $tiny --context 2 --attention window:8
refused 'not a multiple' alone $tiny --context 2
refused 'dropout' ranks 2 $tiny --context 2 --dropout 0.1
finish 0
