#!/bin/sh
# Tokens of a tokenizer.json as a user meets them, from text to file to model to text: data.sh PROGRAM GOLDEN
fattn=$1 golden=$2
. "$(dirname "$0")/checks.sh"

tiny='--hidden 16 --layers 1 --heads 2 --heads-kv 1 --head-dim 8 --ffn 24 --seq 32 --batch 2 --eval-every 0 --threads 1 --warmup 2'
qwen=$golden/tokenizer_qwen.json
mkdir "$dir/texts"
for i in 1 2 3 4; do
    "$fattn" world --lines 40 --seed $i >"$dir/texts/$i.txt"
done

# ------------------------------------------------------------------------------------------------------------- tokenize
right 'usage: fattn tokenize' tokenize --help
wrong '--data is missing' tokenize --out "$dir/x.bin"
wrong '--out is missing' tokenize --data "$dir/texts"
wrong 'neither in .bin nor in .npy' tokenize --data "$dir/texts" --out "$dir/x.dat"
wrong 'no-such-file' tokenize --data "$dir/texts" --tokenizer "$dir/no-such-file" --out "$dir/x.bin"
wrong "'<none>'" tokenize --data "$dir/texts" --tokenizer "$qwen" --eot '<none>' --out "$dir/x.bin"
works tokenize --data "$dir/texts" --tokenizer "$qwen" --out "$dir/train.bin"
works tokenize --data "$dir/texts/*.txt" --tokenizer "$qwen" --out "$dir/train.npy"
wrong 'holds tokens, not text' tokenize --data "$dir/train.bin" --out "$dir/x.bin"

# ---------------------------------------------------------------------------------- the same model from texts and from tokens
run() { # run NAME OPTIONS...
    name=$1
    shift
    works train $tiny --tokenizer "$qwen" --steps 6 --out "$dir/$name" "$@"
}
run plain --data "$dir/texts"
run bin --data "$dir/train.bin"
run npy --data "$dir/train.npy"
same "$dir/plain/model.safetensors" "$dir/bin/model.safetensors"
same "$dir/plain/model.safetensors" "$dir/npy/model.safetensors"
wrong 'vocabulary of the model has 300 tokens' train $tiny --data "$dir/train.bin" --vocab 300 --steps 1
wrong "'<none>'" train $tiny --data "$dir/train.bin" --documents --eot '<none>' --steps 1
wrong 'no token is known that ends a text' train $tiny --data "$dir/train.bin" --documents --steps 1
wrong 'end with token 900, but the vocabulary of the model has 800' \
    train $tiny --data "$dir/train.bin" --documents --eot 900 --vocab 800 --steps 1
works train $tiny --data "$dir/train.bin" --documents --eot 700 --steps 1 --out "$dir/numbers"

# ------------------------------------------------------------------------------------------ documents, stopped and continued
run whole --data "$dir/train.bin" --documents
works train $tiny --tokenizer "$qwen" --data "$dir/train.bin" --documents --steps 6 --schedule constant --out "$dir/six"
works train $tiny --tokenizer "$qwen" --data "$dir/train.bin" --documents --steps 3 --schedule constant --out "$dir/three"
works train --resume "$dir/three" --steps 6
same "$dir/six/model.safetensors" "$dir/three/model.safetensors"
cmp -s "$dir/whole/model.safetensors" "$dir/bin/model.safetensors" && complain '--documents changes nothing'
right '"bits_per_token"' eval --model "$dir/whole" --json
printf '\274\002\274\002\274\002\274\002' >"$dir/ends.bin" # token 700
wrong 'nothing to predict' eval --model "$dir/numbers" --data "$dir/ends.bin" --split train

# ------------------------------------------------------------------------------------------------------------- generation
right '"end":' generate --model "$dir/whole" --prompt 'the <tool> é' --tokens 20 --greedy --json
works generate --model "$dir/whole" --tokens 5
wrong 'no-such-file' generate --model "$dir/whole" --tokenizer "$dir/no-such-file" --tokens 5
works generate --model "$dir/whole" --tokenizer bytes --tokens 5
finish
