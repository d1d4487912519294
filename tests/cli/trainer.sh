#!/bin/sh
# world, train, eval and generate as a user meets them: exit codes and messages, logs, checkpoints that survive signals and
# damage, runs that continue bit for bit: trainer.sh PROGRAM
fattn=$1
. "$(dirname "$0")/checks.sh"

# wait_for COMMAND...: until it succeeds, twenty seconds at most
wait_for() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -gt 400 ] && complain "waited in vain: $*" && return
        sleep 0.05
    done
}

# lines_in FILE N: it has N lines or more
lines_in() {
    [ "$(wc -l <"$1")" -ge "$2" ]
}

shape='--hidden 16 --layers 1 --heads 2 --heads-kv 1 --head-dim 8 --ffn 24 --seq 32'
tiny="$shape --batch 2 --world-lines 100 --eval-every 0 --threads 1 --warmup 2"

# ---------------------------------------------------------------------------------------------------------------- world
for command in world train eval generate; do
    right "usage: fattn $command" $command --help
    wrong "'--nonsense'" $command --nonsense
    wrong "'extra'" $command extra
done
right '^[0-9]*+[0-9]*=[0-9]*$' world --lines 50
cp "$out" "$dir/first"
right . world --lines 50 --seed 1 --split train
same "$dir/first" "$out"
right . world --lines 50 --split train,val
[ "$(wc -l <"$out")" -eq 100 ] || complain 'train,val: not twice the lines'
wrong "'test'" world --split test
wrong '-1' world --lines -1

# ---------------------------------------------------------------------------------------------------- wrong command lines
wrong 'none of: tiny, small' train --preset huge
wrong 'cpu, cuda' train --device tpu
wrong 'f32, bf16' train --dtype f16
wrong "'rough'" train --attention rough
wrong "'block:4'" train --attention block:4
wrong 'contradict' train --flash --attention composed
wrong 'contradict' train --tied --untied
wrong 'contradict' train --fla --att composed
wrong 'contradict' train --tie --unt
wrong 'no-such-file' train --data "$dir/no-such-file"
wrong 'no-such-file' train --config "$dir/no-such-file"
wrong 'no-such-folder' train $tiny --steps 1 --out "$dir/no-such-folder/run"
wrong 'no-such-folder' train $tiny --steps 1 --log "$dir/no-such-folder/log"
wrong 'state.json' train --resume "$dir"
wrong 'heads' train $tiny --heads 3 --heads-kv 2
wrong 'head' train $tiny --head-dim 7
wrong '--max-seq 16' train $tiny --max-seq 16
printf 'short text' >"$dir/short"
wrong 'fewer than a window' train $tiny --data "$dir/short"
printf 'text%.0s' $(seq 300) >"$dir/$(printf 'latin-\351')"
wrong 'is not UTF-8' train $tiny --steps 1 --data "$dir/$(printf 'latin-\351')"
printf 'text%.0s' $(seq 300) >"$dir/$(printf 'utf-\303\251')"
right . train $tiny --steps 1 --data "$dir/$(printf 'utf-\303\251')" --json
mkfifo "$dir/pipe"
wrong 'neither a file nor a folder' train $tiny --data "$dir/pipe"
mkdir "$dir/thesis" && touch "$dir/thesis/chapter"
wrong 'is no checkpoint' train $tiny --steps 1 --out "$dir/thesis"
printf '{"hiden": 3}' >"$dir/config"
wrong 'hiden: no such option' train --config "$dir/config"
printf '{"hidden": "wide"}' >"$dir/config"
wrong "hidden: 'wide'" train --config "$dir/config"
wrong 'model is missing' eval
wrong 'model is missing' generate
wrong 'state.json' eval --model "$dir/no-such-folder"
wrong 'state.json' generate --model "$dir"

# ---------------------------------------------------------------------------------------------------------- configuration
right '"hidden":16' train $tiny --lr 0.1 --flash --print-config
cp "$out" "$dir/config"
right '"attention":"flash"' train --config "$dir/config" --print-config
same "$dir/config" "$out"
right '"lr":0.2,' train --config "$dir/config" --lr 0.2 --print-config
right '"hidden":384' train --preset small --print-config

# ------------------------------------------------------------------------------------------------------- train, eval, use
for how in composed flash; do
    run=$dir/$how
    "$fattn" train $tiny --attention $how --steps 20 --eval-every 10 --sample-every 20 --out "$run" --log "$run.jsonl" \
        >"$out" 2>"$err" || complain "train --attention $how failed"
    [ "$(wc -l <"$run.jsonl")" -eq 21 ] || complain "the log has not 1 + 20 lines"
    json_lines "$run.jsonl"
    head -1 "$run.jsonl" | grep -q '"version":.*"seed":1' || complain 'the first object is not the configuration'
    for field in step loss bits_per_char lr grad_norm tokens_per_s ms mem_bytes; do
        [ "$(grep -c "\"$field\":" "$run.jsonl")" -ge 20 ] || complain "the log lacks $field"
    done
    [ "$(grep -c '"val_bits_per_char":' "$run.jsonl")" -eq 2 ] || complain 'the log has not two evaluations'
    grep -q -- '--- sample at step 20' "$out" || complain 'no sample'
done
right '"step":3' train $tiny --steps 3 --json
json_lines "$out"

right '^composed' eval --model "$dir/flash" --attention composed,flash,block:8,window:4 --seq 16
right '"bits_per_char":' eval --model "$dir/flash" --attention composed,flash,block:8,window:4 --json
says 'window:4 is an approximation'
[ "$(wc -l <"$out")" -eq 4 ] || complain 'not one object for each attention'
json_lines "$out"
python3 - "$out" <<'EOF' || complain 'composed, flash and block:8 differ by more than 1e-6'
import json, sys
rows = {row["attention"]: row for row in map(json.loads, open(sys.argv[1]))}
first = rows["composed"]["bits_per_char"]
assert all(abs(rows[name]["bits_per_char"] - first) < 1e-6 for name in ("flash", "block:8"))
assert rows["window:4"]["approximate"] and not rows["flash"]["approximate"]
EOF
for limit in 1 2; do # fewer threads than asked for: the same numbers
    OMP_THREAD_LIMIT=$limit right . train $tiny --threads 3 --attention flash --steps 20 --out "$dir/limited" --json
    same "$dir/flash/model.safetensors" "$dir/limited/model.safetensors"
done
right . eval --model "$dir/flash" --data "$dir/config" --split train --max-tokens 100 --batch 3
wrong "'rough'" eval --model "$dir/flash" --attention flash,rough
wrong 'window:0' eval --model "$dir/flash" --attention window:0
wrong 'seq' eval --model "$dir/flash" --seq 33

right 'Ada' generate --model "$dir/flash" --prompt Ada --tokens 20 --greedy
cp "$out" "$dir/first"
right 'Ada' generate --model "$dir/flash" --prompt Ada --tokens 20 --greedy --attention flash
same "$dir/first" "$out"
right . generate --model "$dir/flash" --prompt Ada --tokens 20 --seed 7 --top-k 50 --top-p 0.95
cp "$out" "$dir/first"
right . generate --model "$dir/flash" --prompt Ada --tokens 20 --seed 7 --top-k 50 --top-p 0.95
same "$dir/first" "$out"
right '^[0-9 ]*$' generate --model "$dir/flash" --prompt Ada --tokens 20 --greedy --ids
right '^[0-9 ]*$' generate --model "$dir/flash" --prompt-ids 65,100,97 --tokens 20 --greedy --ids
[ "$(wc -w <"$out")" -eq 20 ] || complain 'not 20 ids'
right '"end":"full"' generate --model "$dir/flash" --prompt Ada --tokens 100 --greedy --json
json_lines "$out"
wrong '33 tokens' generate --model "$dir/flash" --prompt 'This prompt is 33 characters long'
wrong 'contradict' generate --model "$dir/flash" --greedy --temperature 0.5
wrong '--greedy and --seed contradict' generate --model "$dir/flash" --greedy --see 1
wrong '--greedy and --temperature contradict' generate --model "$dir/flash" --temp=0.5 --greedy
wrong 'contradict' generate --model "$dir/flash" --prompt a --prompt-ids 1
wrong "'258'" generate --model "$dir/flash" --prompt-ids 258
wrong 'top-p' generate --model "$dir/flash" --top-p 1.5

# -------------------------------------------------------------------------------------------------------------- no memory
# failed WORD ARGUMENTS...: exit code 1 and WORD, within 4 GB of addresses. A sanitizer takes more than that for itself.
failed() {
    word=$1
    shift
    (ulimit -v 4000000 && "$fattn" --version) >"$out" 2>"$err" || return 0
    (ulimit -v 4000000 && exec "$fattn" "$@") >"$out" 2>"$err"
    code=$?
    [ $code -eq 1 ] || complain "fattn $*: exit code $code instead of 1"
    says "^fattn: .*$word"
}
failed 'no memory: [0-9]* bytes are needed, for a step of' train $tiny --steps 1 --batch 1000000
failed 'no memory: [0-9]* bytes are needed, for a step of' eval --model "$dir/flash" --batch 1000000 --threads 1

# ----------------------------------------------------------------------------------------------------------------- resume
# A run that is interrupted, and goes on, ends as the one that was not.
for how in composed flash; do
    run=$dir/stopped-$how steps=400
    "$fattn" train $tiny --attention $how --steps $steps --out "$dir/whole-$how" --log "$dir/whole.jsonl" 2>"$err" ||
        complain 'the whole run failed'
    "$fattn" train $tiny --attention $how --steps $steps --out "$run" --log "$run.jsonl" 2>"$err" &
    wait_for lines_in "$run.jsonl" 5
    kill -$([ $how = flash ] && echo TERM || echo INT) $! 2>/dev/null
    wait $! || complain 'an interrupted run does not end with exit code 0'
    "$fattn" train --resume "$run" --log "$run.jsonl" --threads 1 2>"$err" || complain 'the continued run failed'
    same "$dir/whole-$how/model.safetensors" "$run/model.safetensors"
    same "$dir/whole-$how/optimizer.safetensors" "$run/optimizer.safetensors"
    losses='s/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p'
    sed -n "$losses" "$dir/whole.jsonl" >"$dir/first"
    sed -n "$losses" "$run.jsonl" >"$dir/second"
    same "$dir/first" "$dir/second"
done
right . train --resume "$dir/composed" --flash --steps 22 --out "$dir/switched" --json
right . train --resume "$dir/composed" --steps 20 --out "$dir/nothing-to-do" --json
same "$dir/composed/model.safetensors" "$dir/nothing-to-do/model.safetensors"
wrong '--hidden 32 contradicts .* 16' train --resume "$dir/flash" --hidden 32 --steps 30
wrong '--layers 4 contradicts .* 1\|--hidden 128 contradicts .* 16' train --resume "$dir/flash" --preset tiny --steps 30
wrong '--untied\|--tied false contradicts .* true' train --resume "$dir/flash" --untied --steps 30
wrong '--seed 2 contradicts .* 1' train --resume "$dir/flash" --seed 2 --steps 30
wrong '--seq 16 contradicts .* 32' train --resume "$dir/flash" --seq 16 --steps 30

# Killed without warning at any moment, a run leaves a whole checkpoint.
run=$dir/killed
for delay in 0.01 0.03 0.05 0.07 0.11 0.13; do
    "$fattn" train $tiny --steps 1000000 --save-every 1 --out "$run" 2>/dev/null &
    wait_for test -f "$run/state.json"
    sleep $delay
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    right . eval --model "$run" --max-tokens 10
    right . train --resume "$run" --steps 1 --json
done

# A learning rate that ruins the model.
"$fattn" train --resume "$dir/flash" --steps 200 --lr 1e6 --min-lr 1e6 --clip 0 --weight-decay 1000 --out "$dir/ruined" 2>"$err"
code=$?
[ $code -eq 1 ] || complain "a diverging run: exit code $code instead of 1"
says ' in step '

# ----------------------------------------------------------------------------------------------------------------- damage
for file in model.safetensors optimizer.safetensors state.json; do
    rm -rf "$dir/damaged" && cp -r "$dir/flash" "$dir/damaged"
    size=$(wc -c <"$dir/flash/$file")
    for at in 0 $((size / 2)) $((size - 1)); do
        cp "$dir/flash/$file" "$dir/damaged/$file"
        printf '\377' | dd of="$dir/damaged/$file" bs=1 seek=$at conv=notrunc 2>/dev/null
        wrong "$file" train --resume "$dir/damaged" --steps 30
    done
    head -c $((size - 1)) "$dir/flash/$file" >"$dir/damaged/$file"
    wrong "$file" train --resume "$dir/damaged" --steps 30
    rm "$dir/damaged/$file"
    wrong "$file" train --resume "$dir/damaged" --steps 30
done
cp -r "$dir/flash/." "$dir/damaged"
printf 'x' >>"$dir/damaged/model.safetensors"
wrong model.safetensors eval --model "$dir/damaged"
wrong model.safetensors generate --model "$dir/damaged"

finish
