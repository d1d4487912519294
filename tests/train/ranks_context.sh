#!/bin/sh
# Ranks that share sequences, under mpirun: ring attention against one pass, whole runs against one process.
#
#   sh tests/train/ranks_context.sh build/release/cli/fattn build/release/tests/train
set -u
fattn=${1:?program} ring=${2:?folder of the test programs}/train_ring
. "$(dirname "$0")/ranks_lib.sh"

need_mpi 4

section first
for n in 1 2 4; do
  timeout 60 mpirun --oversubscribe -n $n "$ring" 2>"$err" || complain "ring attention on $n ranks: $(tail -5 "$err")"
done

section 'the losses of one process'
long="$tiny --seq 64 --steps 10 --flash"
good alone $long --log "$dir/long.log"
for n in 2 4; do
  good ranks $n $long --context $n --log "$dir/context$n.log" --check-ranks 5
  close_curve long.log context$n.log 10
done
good alone $long --accumulate 2 --log "$dir/long2.log"
good ranks 4 $long --context 2 --zero --recompute --log "$dir/groups.log" --check-ranks 5
close_curve long2.log groups.log 10
# What the CPU composes in float only.
half="$tiny --seq 64 --steps 10 --dtype bf16 --attention composed"
good alone $half --log "$dir/half.log"
good ranks 2 $half --context 2 --log "$dir/half2.log" --check-ranks 5
close_curve half.log half2.log 10 2e-3

section 'packed documents'
packed "$dir/packed.bin"
packed="$tiny --data $dir/packed.bin --vocab 256 --eot 255 --documents --seq 64 --batch 1 --steps 10"
good alone $packed --accumulate 4 --log "$dir/packed.log"
good ranks 2 $packed --accumulate 4 --context 2 --log "$dir/packed2.log" --check-ranks 5
good ranks 4 $packed --accumulate 4 --context 4 --log "$dir/packed4.log" --flash --no-document-positions --check-ranks 5
close_curve packed.log packed2.log 10
close_curve packed.log packed4.log 10 1e-5
good ranks 4 $packed --accumulate 2 --context 2 --zero --recompute --flash --log "$dir/packed22.log" --check-ranks 5
close_curve packed.log packed22.log 10
# Continued with other numbers of ranks.
good ranks 4 $packed --accumulate 4 --context 4 --steps 3 --out "$dir/parts" --log "$dir/parts.log" --zero
good ranks 2 train --resume "$dir/parts" --context 2 --steps 6 --log "$dir/parts.log" --zero
good alone train --resume "$dir/parts" --steps 8 --log "$dir/parts.log"
good ranks 2 train --resume "$dir/parts" --accumulate 2 --steps 10 --log "$dir/parts.log"
close_curve packed.log parts.log 10

section 'what is refused'
refused '4, not a multiple' ranks 4 $long --seq 72 --context 3
refused '8 chunks' ranks 4 $tiny --seq 36 --context 4 --log "$dir/refused.log"
refused 'exact and causal' ranks 2 $tiny --context 2 --attention window:8 --log "$dir/refused.log"
refused 'not a multiple' alone $tiny --context 2
refused 'dropout' ranks 2 $tiny --context 2 --dropout 0.1 --log "$dir/refused.log"
[ ! -e "$dir/refused.log" ] || complain 'something was written before a refusal'
finish 0
