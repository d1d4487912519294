#!/bin/sh
# What watches and guards a run, as a user meets it: bf16 and dropout that resume bit for bit, schedules, event files read by a
# reader that shares nothing with the writer, curves, MFU, the guard, and signals: watching.sh PROGRAM
fattn=$1
. "$(dirname "$0")/checks.sh"

shape='--hidden 16 --layers 1 --heads 2 --heads-kv 1 --head-dim 8 --ffn 24 --seq 32'
tiny="$shape --batch 2 --world-lines 100 --eval-every 0 --threads 1 --warmup 2 --peak 1"

# ------------------------------------------------------------------------------------------------------------ wrong words
wrong "'rough'" train --schedule rough
wrong "'rough'" train --guard rough
wrong '--dropout: 1 ' train --dropout 1
wrong '--decay-steps 15 and --warmup 10 are more than --steps 20' train --schedule wsd --decay-steps 15 --warmup 10 --steps 20
wrong 'contradict' train --replay "$dir/none" --overfit-one-batch
wrong 'none' train $tiny --steps 1 --replay "$dir/none"
wrong '--tensorboard: .*no-such-folder' train $tiny --steps 1 --tensorboard "$dir/no-such-folder/events"
wrong 'LOG is missing' plot
wrong 'no-such-file' plot "$dir/no-such-file"

# --------------------------------------------------------------------------------------- bf16, dropout: resume bit for bit
# The schedule is constant, so that a run of 12 steps begins as one of 20 does.
for how in '--dtype bf16' '--dtype bf16 --flash --dropout 0.2' '--dropout 0.2 --accumulate 2'; do
    rm -rf "$dir/whole" "$dir/parts"
    right . train $tiny $how --schedule constant --steps 20 --out "$dir/whole" --json
    right . train $tiny $how --schedule constant --steps 12 --out "$dir/parts" --json
    right . train --resume "$dir/parts" --steps 20 --recompute --threads 1 --peak 1 --json
    same "$dir/whole/model.safetensors" "$dir/parts/model.safetensors"
    same "$dir/whole/optimizer.safetensors" "$dir/parts/optimizer.safetensors"
done
right '"lr":0.1' train $tiny --schedule wsd --decay-fraction 0.5 --steps 12 --lr 0.1 --min-lr 0 --json
grep '"step":8,' "$out" | grep -q '"lr":0.0591' || complain 'wsd: not 1 - sqrt(1/6) of the learning rate in step 8'
right . eval --model "$dir/whole" --dtype bf16 --attention composed,flash,block:8 --json
python3 - "$out" <<'P' || complain 'bf16: attentions differ'
import json, sys
losses = [row["loss"] for row in map(json.loads, open(sys.argv[1]))]
assert len(losses) == 3 and max(losses) - min(losses) < 1e-2 * losses[0], losses
P
right . generate --model "$dir/whole" --dtype bf16 --prompt Ada --tokens 5 --greedy

# ---------------------------------------------------------------------------------------------------- events, curves, MFU
right . train $tiny --steps 12 --eval-every 4 --log "$dir/run.jsonl" --tensorboard "$dir/events" --peak 0.5 --json
head -1 "$dir/run.jsonl" | grep -q '"peak_tflops":0.5,"peak_from":"given"' || complain 'the log has not the peak that was given'
python3 - "$dir" <<'P' || complain 'the event file is not what was logged'
import glob, json, math, struct, sys

def crc32c(data):
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF

def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

def records(data):
    at = 0
    while at < len(data):
        (length, check) = struct.unpack_from("<QI", data, at)
        assert check == masked(data[at:at + 8])
        body = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body)
        yield body
        at += 16 + length

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at

def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(key & 7) or varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value

files = glob.glob(sys.argv[1] + "/events/*tfevents*")
assert len(files) == 1, files
events = [dict(fields(body)) for body in records(open(files[0], "rb").read())]
assert events[0][3] == b"brain.Event:2" and 5 not in events[0]
log = [row for row in map(json.loads, open(sys.argv[1] + "/run.jsonl")) if "step" in row]
assert len(events) == 13 and len(log) == 12
names = {"train/loss": "loss", "train/learning_rate": "lr", "train/gradient_norm": "grad_norm", "speed/tokens_per_s": "tokens_per_s",
         "speed/mfu": "mfu", "validation/loss": "val_loss"}
for event, row in zip(events[1:], log):
    assert event[2] == row["step"] and 1.6e9 < struct.unpack("<d", event[1])[0] < 1e11
    seen = {}
    for number, value in fields(event[5]):
        scalar = dict(fields(value))
        assert number == 1
        seen[names[scalar[1].decode()]] = struct.unpack("<f", scalar[2])[0]
    assert set(seen) == {name for name in names.values() if name in row}, seen
    assert all(math.isclose(seen[name], row[name], rel_tol=1e-6) for name in seen), (seen, row)
    flops = row["tokens_per_s"] * (6 * (16 * (2 * 16 + 2 * 8 + 3 * 24) + 258 * 16) + 12 * 16 * 33 / 2)
    assert math.isclose(row["mfu"], flops / 0.5e12, rel_tol=1e-6), row
P
[ -s "$dir/run.svg" ] || complain 'no curve beside the log'
cp "$dir/run.svg" "$dir/first"
right . plot "$dir/run.jsonl" --out -
same "$dir/first" "$out"
right 'logarithmic' plot "$dir/run.jsonl" --out - --log-scale
python3 - "$dir/run.svg" <<'P' || complain 'the curve is not drawn'
import sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
paths = {p.get("class"): p.get("d") for p in root.iter("{http://www.w3.org/2000/svg}path")}
assert paths["train"].count("L") == 11 and paths["val"].count("L") == 2, paths
P
right . train $tiny --steps 1 --log /dev/null --json
[ -e /dev/null.svg ] && complain 'a curve beside /dev/null'
right '"peak_from":"measured"' train $shape --batch 2 --world-lines 100 --eval-every 0 --steps 1 --json

# -------------------------------------------------------------------------------------------------------------- the guard
# Without clipping, this learning rate soon gives numbers that are not finite.
ruin="$tiny --steps 60 --lr 1e6 --min-lr 1e6 --clip 0 --weight-decay 1000"
"$fattn" train $ruin --out "$dir/ruined" --json >"$out" 2>"$err"
[ $? -eq 1 ] || complain 'a diverging run does not end with exit code 1'
says ' in step '
says "ruined/stopped"
step=$(grep -c '"step":' "$out")
step=$((step + 1))
"$fattn" train --resume "$dir/ruined/stopped" --out "$dir/again" --json >"$out" 2>"$err"
[ $? -eq 1 ] || complain 'what stopped does not stop again'
says " in step $step"
"$fattn" train --resume "$dir/ruined/stopped" --replay "$dir/ruined/stopped/batch.safetensors" --json >"$out" 2>"$err"
says " in step $step"
wrong '1 micro-batches of 2 windows of 32 tokens, but the run has 1 of 3 of 32' \
    train --resume "$dir/ruined/stopped" --batch 3 --replay "$dir/ruined/stopped/batch.safetensors" --steps 60
"$fattn" train $ruin --guard skip --json >"$out" 2>"$err"
[ $? -eq 1 ] || complain 'a run that skips everything does not end with exit code 1'
[ "$(grep -c '"skipped":true' "$out")" -eq 15 ] || complain 'not fifteen updates were skipped before the end'
right . train $ruin --guard off --json

# ---------------------------------------------------------------------------------------------------------------- signals
# The first one waits for the step to end, the second one does not: a step here takes long.
"$fattn" train --hidden 512 --heads 8 --heads-kv 8 --head-dim 64 --layers 8 --ffn 2048 --seq 512 --batch 16 --threads 1 --peak 1 \
    --steps 9 --eval-every 0 --log "$dir/long.jsonl" 2>"$err" &
tries=0
until [ -s "$dir/long.jsonl" ] || [ $tries -gt 400 ]; do
    tries=$((tries + 1))
    sleep 0.05
done
kill -INT $!
sleep 0.3
kill -0 $! 2>/dev/null || complain 'the first signal ends the run in the middle of a step'
kill -INT $!
wait $! 2>/dev/null
code=$?
[ $code -eq 130 ] || complain "after a second signal: exit code $code instead of 130"

finish
