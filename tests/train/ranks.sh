#!/bin/sh
# Several ranks under mpirun: the bits of one process with as many micro-batches, whatever they are combined with; checkpoints that
# continue with other numbers of ranks.
#
#   sh tests/train/ranks.sh build/release/cli/fattn
#
# Ranks that the program cannot have are refused, which is tested anywhere; the rest is skipped where it was built without MPI or
# where there is no OpenMPI to start it.
set -u
fattn=${1:?program}
. "$(dirname "$0")/ranks_lib.sh"

section first
refused "RANK is 'two', not a number" env RANK=two WORLD_SIZE=2 "$fattn" $tiny 2>"$err"
refused 'RANK is 2, but WORLD_SIZE is 2' env RANK=2 WORLD_SIZE=2 "$fattn" $tiny 2>"$err"
refused 'says rank 1 of 3, but' env SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0 "$fattn" $tiny 2>"$err"
need_mpi 5

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
everything="$tiny --steps 4 --flash --dropout 0.1 --dtype bf16"
good alone $everything --accumulate 8 --out "$dir/all_alone" --log "$dir/all_alone.log"
good ranks 4 $everything --accumulate 2 --out "$dir/all_ranks" --log "$dir/all_ranks.log" --recompute --zero --check-ranks 1
same all_alone all_ranks
same_curve all_alone.log all_ranks.log

section 'as many targets as there are'
# Packed documents: micro-batches with few targets, with many and with none.
packed "$dir/packed.bin"
packed="$tiny --data $dir/packed.bin --vocab 256 --eot 255 --documents --batch 1 --steps 6 --eval-batches 0"
good alone $packed --accumulate 4 --out "$dir/packed" --log "$dir/packed.log"
for how in '4 --accumulate 1' '4 --accumulate 1 --zero' '2 --accumulate 2 --zero --recompute'; do
  good ranks ${how%% *} $packed ${how#* } --out "$dir/packed_ranks" --log "$dir/packed_ranks.log" --check-ranks 2
  same packed packed_ranks
  same_curve packed.log packed_ranks.log
done
good alone $packed --accumulate 1 --batch 4 --log "$dir/packed_batch.log"
close_curve packed.log packed_batch.log 6

section 'the guard stops all ranks'
# What is left behind is the batch of all ranks.
leap="$tiny --steps 400 --lr 1e-2 --spike 0.1 --guard stop"
alone $leap --accumulate 2 --out "$dir/leap_alone" >/dev/null && complain 'no leap'
ranks 2 $leap --out "$dir/leap_ranks" >/dev/null && complain 'no leap among ranks'
cmp "$dir/leap_alone/stopped/batch.safetensors" "$dir/leap_ranks/stopped/batch.safetensors" >&2 || complain 'other batches are left behind'
same leap_alone/stopped leap_ranks/stopped
# Updates that are skipped are so on all ranks.
skip="$tiny --steps 260 --lr 1e-6 --spike 1.5 --guard skip"
good alone $skip --accumulate 2 --out "$dir/skip_alone" --log "$dir/skip.log"
for what in loss norm; do
  grep -q "skipped: the .*$what is" "$err" || complain "no update was skipped because of its $what"
done
good ranks 2 $skip --zero --check-ranks 1 --out "$dir/skip_ranks" --log "$dir/skip_ranks.log"
same skip_alone skip_ranks
same_curve skip.log skip_ranks.log
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
good ranks 4 $packed --accumulate 1 --steps 2 --out "$dir/fewer" --zero
good ranks 2 train --resume "$dir/fewer" --accumulate 2 --steps 4 --zero
good alone train --resume "$dir/fewer" --accumulate 4 --steps 6
same packed fewer
finish 0
