#!/bin/sh
# Models that go out and come in: export, train --init, eval and generate of a Hugging Face folder, and checkpoints that were
# moved: interop.sh PROGRAM GOLDEN
fattn=$1 golden=$2
. "$(dirname "$0")/checks.sh"

tiny='--hidden 16 --layers 2 --heads 2 --heads-kv 1 --head-dim 8 --ffn 24'
tiny="$tiny --seq 32 --batch 2 --eval-every 0 --threads 1 --warmup 2"
data='--data world --world-lines 200'
field() { # field NAME: its number in the line of JSON that was printed
    sed -n "s/.*\"$1\":\([-0-9.e+]*\).*/\1/p" "$out" | tail -n 1
}
equal() { # equal WHAT A B
    [ -n "$2" ] && [ "$2" = "$3" ] || complain "$1: '$2' and '$3'"
}
text() { # text MODEL [options]: what it generates
    model=$1
    shift
    works generate --model "$model" --greedy --tokens 30 --ignore-eos "$@"
    cat "$out"
}

# -------------------------------------------------------------------------------------------- out and in, with bytes
works train $tiny $data --steps 8 --out "$dir/run"
right 'usage: fattn export' export --help
right 'model.safetensors$' export --model "$dir/run" --format hf --out "$dir/hf"
(cd "$dir/hf" && sha256sum --quiet -c SHA256SUMS) || complain 'SHA256SUMS is not what sha256sum checks'
printed=$(grep model.safetensors "$out" | cut -d' ' -f1)
equal 'the printed SHA-256' "$printed" "$(sha256sum <"$dir/hf/model.safetensors" | cut -d' ' -f1)"
for name in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json; do
    [ -s "$dir/hf/$name" ] || complain "the export has no $name"
done
json eval --model "$dir/run" --seq 32 --json
loss=$(field loss)
json eval --model "$dir/hf" --seq 32 $data --json
equal 'the loss of an export' "$(field loss)" "$loss"
equal 'the text of an export' "$(text "$dir/hf" --prompt '12+')" "$(text "$dir/run" --prompt '12+')"
works train --init "$dir/hf" $data --seq 32 --batch 16 --threads 1 --steps 1 --lr 0 --min-lr 0 --warmup 0 --eval-every 1 \
    --log "$dir/log" --out "$dir/tuned"
cp "$dir/log" "$out"
equal 'the loss that --init begins with' "$(field val_loss)" "$loss"
same "$dir/tuned/model.safetensors" "$dir/run/model.safetensors"
# An export of an export, and one over another, are the same files.
works export --model "$dir/hf" --format hf --out "$dir/hf2"
works export --model "$dir/tuned" --format hf --out "$dir/hf2"
for name in config.json model.safetensors tokenizer.json SHA256SUMS; do
    same "$dir/hf/$name" "$dir/hf2/$name"
done
for dtype in f32 f16 bf16; do
    works export --model "$dir/run" --format gguf --dtype $dtype --out "$dir/$dtype.gguf"
    works export --model "$dir/run" --format hf --dtype $dtype --out "$dir/hf-$dtype"
done
[ "$(wc -c <"$dir/bf16.gguf")" -lt "$(wc -c <"$dir/f32.gguf")" ] || complain 'bf16 saves nothing'
works eval --model "$dir/hf-bf16" $data
# Bytes with room for more tokens: numbers until somebody says that they are bytes.
works train $tiny $data --vocab 320 --steps 1 --out "$dir/wide"
works export --model "$dir/wide" --format hf --out "$dir/wide-hf"
says 'no tokenizer is known for this model of 320 tokens'
works export --model "$dir/wide" --tokenizer bytes --format hf --out "$dir/wide-hf"
works export --model "$dir/wide-hf" --format hf --out "$dir/wide-hf2"
same "$dir/wide-hf/tokenizer.json" "$dir/wide-hf2/tokenizer.json"
works export --model "$dir/hf-f32" --format gguf --out "$dir/again.gguf"
same "$dir/again.gguf" "$dir/f32.gguf"
# A window goes along.
works train $tiny $data --steps 2 --attention window:5 --out "$dir/window"
works export --model "$dir/window" --format hf --out "$dir/window-hf"
grep -q '"sliding_window": 5' "$dir/window-hf/config.json" || complain 'the window is not exported'
equal 'the text with a window' "$(text "$dir/window-hf" --ids)" "$(text "$dir/window" --ids)"
wrong 'window of 5' export --model "$dir/window" --format gguf --out "$dir/w.gguf"

# ------------------------------------------------------------------------------------------- a tokenizer, and what moves
mkdir "$dir/words"
cp "$golden/tokenizer_qwen.json" "$dir/words/tokenizer.json"
echo '{"bos_token_id": 1, "eos_token_id": [701, 2]}' >"$dir/words/generation_config.json"
echo '{% for m in messages %}{% endfor %}' >"$dir/words/chat_template.jinja"
works train $tiny $data --tokenizer "$dir/words/tokenizer.json" --steps 6 --out "$dir/bpe"
right '"bits_per_byte"' eval --model "$dir/bpe" --json
right '"bits_per_token"' eval --model "$dir/bpe" --json
right 'bits/byte' eval --model "$dir/bpe"
# The bytes are those of the file, less the first token, which nothing predicts.
mkdir "$dir/texts"
"$fattn" world --lines 30 >"$dir/texts/a.txt"
{
    printf '~'
    "$fattn" world --lines 20 --seed 3
    printf 'caf\303\251 \344\270\226'
} >"$dir/texts/val.txt"
json eval --model "$dir/bpe" --data "$dir/texts" --json
bytes=$(echo "$(field bits_per_token) $(field tokens) $(field bits_per_byte)" | awk '{ printf "%.3f", $1 * $2 / $3 }')
equal 'the bytes that are measured' "$bytes" "$(($(wc -c <"$dir/texts/val.txt") - 1)).000"
before=$(text "$dir/bpe" --prompt 'The cat é')
works export --model "$dir/bpe" --format hf --out "$dir/bpe-hf"
mv "$dir/words" "$dir/gone"
mv "$dir/bpe" "$dir/moved"
equal 'the text of a checkpoint that was moved' "$(text "$dir/moved" --prompt 'The cat é')" "$before"
equal 'the text of its export' "$(text "$dir/bpe-hf" --prompt 'The cat é')" "$before"
for name in tokenizer.json generation_config.json chat_template.jinja; do
    same "$dir/gone/$name" "$dir/moved/$name"
    same "$dir/gone/$name" "$dir/bpe-hf/$name"
done
grep -q '"eos_token_id": 701' "$dir/bpe-hf/config.json" || complain 'config.json has not the end of generation_config.json'
# Every end that generation_config.json has ends the output, not only the first.
third=$(text "$dir/bpe-hf" --prompt 'The cat' --ids | cut -d' ' -f3)
cp -r "$dir/bpe-hf" "$dir/ends"
rm "$dir/ends/SHA256SUMS"
echo "{\"eos_token_id\": [701, $third, 2]}" >"$dir/ends/generation_config.json"
right '"end":"eos"' generate --model "$dir/ends" --greedy --prompt 'The cat' --tokens 30 --json
grep -q "\"tokens\":\[[0-9,]*\b$third\b" "$out" && complain 'the output goes on behind a token that ends it'
works train --resume "$dir/moved" --steps 7 --out "$dir/on"
same "$dir/gone/tokenizer.json" "$dir/on/tokenizer.json"
works train --init "$dir/bpe-hf" $data --seq 32 --batch 2 --steps 1 --eval-every 0 --out "$dir/bpe-tuned"
same "$dir/gone/chat_template.jinja" "$dir/bpe-tuned/chat_template.jinja"
works train --init "$dir/bpe-hf" $data --tokenizer bytes --seq 32 --batch 2 --steps 1 --eval-every 0
says "tokenizer bytes instead of the model's $dir/bpe-hf/tokenizer.json"
works export --model "$dir/on" --format gguf --out "$dir/on.gguf"
printf ' ' >>"$dir/moved/tokenizer.json"
for command in 'generate --tokens 2' eval "export --format hf --out $dir/x"; do
    wrong 'tokenizer.json: [0-9]* bytes, but state.json says' $command --model "$dir/moved"
done
wrong 'tokenizer.json' train --resume "$dir/moved" --steps 9
rm "$dir/moved/tokenizer.json"
wrong 'tokenizer.json' generate --model "$dir/moved" --tokens 2
works generate --model "$dir/moved" --tokenizer "$dir/gone/tokenizer.json" --tokens 2

# ------------------------------------------------------------------------------------------------------- what is refused
wrong '--model is missing' export --format hf --out "$dir/x"
wrong '--format is missing' export --model "$dir/run" --out "$dir/x"
wrong '--out is missing' export --model "$dir/run" --format hf
wrong "'onnx'" export --model "$dir/run" --format onnx --out "$dir/x"
wrong "'q4'" export --model "$dir/run" --format gguf --dtype q4 --out "$dir/x"
wrong 'no-such-folder' export --model "$dir/no-such-folder" --format hf --out "$dir/x"
wrong 'no-such-folder' train --init "$dir/no-such-folder" --steps 1
wrong 'holds neither state.json' generate --model "$dir"
wrong 'exists and is no export' export --model "$dir/run" --format hf --out "$dir/gone"
wrong 'exists and is no GGUF file' export --model "$dir/run" --format gguf --out "$dir/log"
wrong 'the tokenizer has 709 tokens, the model 258' export --model "$dir/run" --format hf --out "$dir/x" \
    --tokenizer "$golden/tokenizer_qwen.json"
wrong 'contradict' train --init "$dir/hf" --resume "$dir/run" --steps 1
wrong '--hidden 32 contradicts the model' train --init "$dir/hf" --hidden 32 --steps 1
wrong '--data is missing' eval --model "$dir/hf"
wrong 'needs --json' generate --model "$dir/hf" --top-logits 2
cp -r "$dir/hf" "$dir/bare"
rm "$dir/bare/SHA256SUMS" "$dir/bare/tokenizer.json"
wrong 'has no tokenizer.json' generate --model "$dir/bare" --prompt x
wrong 'has no tokenizer.json' eval --model "$dir/bare" --data world
wrong 'has no tokenizer.json' train --init "$dir/bare" --data world --seq 32 --steps 1
wrong 'none is known' export --model "$dir/bare" --format gguf --out "$dir/x.gguf"
works generate --model "$dir/bare" --prompt-ids 49,50 --ids --tokens 3
works generate --model "$dir/bare" --tokenizer bytes --prompt x --tokens 3
# The token that config.json says ends a text ends the output.
works generate --model "$dir/bare" --prompt-ids 49,50 --greedy --ids --tokens 1
sed -i "s/\"eos_token_id\": 257/\"eos_token_id\": $(cat "$out")/" "$dir/bare/config.json"
right '"end":"eos"' generate --model "$dir/bare" --prompt-ids 49,50 --greedy --tokens 3 --json
right '"end":"length"' generate --model "$dir/bare" --prompt-ids 49,50 --greedy --tokens 3 --json --ignore-eos
sed -i 's/qwen3/mistral/' "$dir/bare/config.json"
for command in generate 'eval --data world' "export --format hf --out $dir/x"; do
    wrong "'model_type' is \"mistral\"" $command --model "$dir/bare"
done
wrong "'model_type' is \"mistral\"" train --init "$dir/bare" --steps 1
printf 'x' >>"$dir/hf/model.safetensors"
wrong 'SHA256SUMS says' generate --model "$dir/hf" --prompt x
[ -e "$dir/x" ] || [ -e "$dir/x.gguf" ] && complain 'something was left behind'
finish
