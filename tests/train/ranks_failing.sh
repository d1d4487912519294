#!/bin/sh
# Ranks that are killed, that hang, that are asked to stop, that refuse or come to differ: the job ends, and the last checkpoint is
# whole.
#
#   sh tests/train/ranks_failing.sh build/release/cli/fattn build/release/tests/train
set -u
fattn=${1:?program} roll=${2:?folder of the test programs}/train_roll
. "$(dirname "$0")/ranks_lib.sh"

need_mpi 5

section first
# Away from any step's end; then, while checkpoints are written all the time, the one that writes them, some times.
for every in 4 1 1 1 1; do
  run=$dir/killed$every
  rm -rf "$run" "$dir/through$every"
  timeout 60 mpirun --oversubscribe -n 2 "$fattn" $tiny --steps 100000 --accumulate 2 --save-every $every --out "$run" 2>"$err" >/dev/null &
  wait_for test -f "$run/state.json"
  [ $every -eq 4 ] || sleep 0.3$(date +%N | cut -c4)
  before=$(date +%s)
  kill -KILL $(a_rank $! $((every / 4)))
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

section 'a rank that hangs'
# Stopped, as one that computes for ever: the others say which one it is.
for how in '0 2 --zero' '2 3 --accumulate=1' '1 4 --context=4 --seq=64'; do
  set -- $how
  hung=$1 n=$2
  shift 2
  run=$dir/hung$hung
  timeout 60 mpirun --oversubscribe -n $n "$fattn" $tiny "$@" --steps 100000 --rank-timeout 2 --save-every 3 --out "$run" 2>"$err" \
    >/dev/null &
  wait_for test -f "$run/state.json"
  sleep 0.3
  before=$(date +%s)
  kill -STOP $(a_rank $! $hung)
  wait $!
  status=$? took=$(($(date +%s) - before))
  [ $status -eq 1 ] || complain "rank $hung of $n was stopped, but the exit code is $status"
  [ $took -lt 20 ] || complain "rank $hung of $n was stopped, and the others waited for $took s"
  grep -q "in step .*(--rank-timeout): missing: rank $hung" "$err" || complain "rank $hung of $n was stopped, but: $(cat "$err")"
  good alone eval --model "$run" --max-tokens 500
done
timeout 60 mpirun --oversubscribe -n 3 "$roll" 2>"$err" && complain 'a rank hangs, but the exit code is 0'
grep -q "^rank 0 waited 3 s in step 17 (--rank-timeout): missing: rank 1\$" "$err" || complain "rank 1 hangs, but: $(cat "$err")"

section 'a rank that is asked to stop'
timeout 60 mpirun --oversubscribe -n 2 "$fattn" $tiny --steps 100000 --save-every 1 --out "$dir/stopped" 2>"$err" >/dev/null &
wait_for test -f "$dir/stopped/state.json"
kill -TERM $(a_rank $! 1)
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
finish 0
