#!/bin/sh
# Exit codes, messages and output forms of info, check, bench and gradcheck: commands.sh PROGRAM
fattn=$1
. "$(dirname "$0")/checks.sh"

wrong 'no command'
wrong "'nonsense'" nonsense
right 'usage: fattn COMMAND' --help
right '^fattn [0-9]' --version
for command in info check 'bench attention' 'bench gemm' 'bench train' gradcheck; do
    right "usage: fattn $command" $command --help
    wrong "'--nonsense'" $command --nonsense
done
right 'attention|gemm' bench --help

json info --json
right 'ref_forward' info
right '^  forward   ref_forward  *cpu  *runs here' info
wrong "'extra'" info extra

wrong "--seed: 'x'" check --seed x
wrong '--seed: -1 is not in 0' check --seed -1
wrong "'--seed'" check --seed
wrong "--device: 'tpu'" check --device tpu
wrong '--quick and --full' check --quick --full
wrong 'no problem matches' check no-such-problem
wrong 'no kernel' check --kernel no_such_kernel q3k4/d8
wrong "'b'" check a b
wrong "'-x'" check -xyz
wrong 'no problem matches' check "$(printf '%0999d' 0)"
wrong 'no problem matches' check q1000000000000k1000000000000/d8
wrong 'no memory' check forward/f32/b9/q4k4/d8/far
if (ulimit -v 4000000 && "$fattn" info) >"$out" 2>&1; then # a sanitizer's programs need more
    (
        ulimit -v 4000000
        right '^not reached: forward/f32/b3/q6k10/d24/far/seed1 (no memory' check --kernel ref 'forward/f32/b3/*'
        right ' passed, 0 failed, 1 skipped$' check --kernel ref 'forward/f32/b3/*'
        exit $failures
    ) || failures=$((failures + 1))
fi
wrong "--threads: '1,,2'" check --threads 1,,2
wrong '--threads: 0 is not in 1' check --threads 0
right 'forward/f32/' check --quick --list
right '^forward/f64/q3k4/d8/causal/seed9$' check --list forward/f64/causal/q3k4/d8/seed9
right ' 0 failed, ' check --kernel ref forward/f64/q3k4/d8/causal/seed9
right '^1 passed, 0 failed, 0 skipped$' check backward/f32/b2/q3k4/d8/seed9@ref_backward
json check --json --list --quick
json check --json --kernel ref --quick 'forward/f32/*causal*'

wrong "'nonsense'" bench nonsense
wrong "--mask: 'diagonal'" bench attention --mask full,diagonal
wrong "--mask: 'window:3'" bench attention --mask window:3
wrong '--dim: 0 is not in 1 .. 512' bench attention --dim 0
wrong "--mask: 'window:3,4,5'" bench attention --mask window:3,4,5,causal
wrong "--mask: 'chunked:0'" bench attention --mask chunked:0
wrong "--mask: 'causal:3'" bench attention --mask causal:3
wrong "--mask: ''" bench attention --mask full,
wrong "--dtype: 'int8'" bench attention --dtype int8
wrong "--out-dtype: 'bf16'" bench attention --out-dtype bf16
wrong '--out-dtype f32: .*f64' bench attention --dtype bf16,f64 --out-dtype same,f32
wrong '--grad-dtype f32: .*f64' bench attention --dtype f64 --grad-dtype f32
wrong "--bias: 'qh'" bench attention --bias h,qh
wrong '--dbias: .*--pass bwd' bench attention --bias h --dbias
wrong '--dbias: needs --bias' bench attention --dbias --pass bwd
wrong '--softcap: -1 is not in' bench attention --softcap 0,-1
wrong "--softcap: 'x'" bench attention --softcap x
wrong '--dropout: 1 is not in' bench attention --dropout 0.1,1
wrong '--kv i8: .*bwd' bench attention --kv same,i8 --pass fwd,bwd
wrong '--kv i8: .*f64' bench attention --kv i8 --dtype f32,f64
wrong '--page: .*bwd' bench attention --page 16 --pass decode,bwd
wrong '--page: .*--varlen' bench attention --page 16 --varlen
wrong '2^31 rows' bench attention --batch 1000000 --heads 1 --seq 1000000 --dim 1 --seq-q 1
wrong '--heads-kv: 3 does not divide --heads 8' bench attention --heads 8 --heads-kv 3
wrong "--preset: 'best'" bench attention --preset best
wrong '--seconds: 0 is not in' bench attention --seconds 0
wrong '2^40 elements' bench attention --batch 1000000000 --heads 1000000000 --seq 1000000000
wrong 'no_such_kernel' bench attention --kernel auto,no_such_kernel --seq 8
wrong 'more than 64' bench attention --mask "$(printf 'full,%.0s' $(seq 64))full"
right '^kernel' bench attention --seq 64,65 --mask full,causal,window:8,0 --kernel auto,ref --seconds 0.001
json bench attention --json --pass fwd,bwd,decode --seq 96 --heads 4 --heads-kv 2 --dim 32 --dim-v 16 --seconds 0.001
grep -q '"fraction_of_copy"' "$out" || complain 'decode without fraction_of_copy'
for field in op kernel device device_name dtype out_dtype grad_dtype kv_dtype layout batch heads heads_kv seq_q seq_k dim \
    dim_v mask bias dbias alibi softcap sinks dropout varlen page scores threads ms ms_min runs ns_per_score gflops \
    peak_gflops fraction_of_peak bytes gbps workspace_bytes max_error; do
    grep -q "\"$field\":" "$out" || complain "bench attention --json lacks $field"
done

# Every kernel of every type is right with all features: a wrong one makes the exit code 1.
small='--seconds 0.001 --seq 70 --heads 4 --heads-kv 2 --dim 24 --kernel auto,cpu_avx2,ref'
masks=full,causal-br,window:9,0,chunked:16,prefix:7,document:20,document-br:20,9,0,intervals
json bench attention --json $small --dtype f32,bf16,f16 --pass fwd,bwd --batch 2 --mask $masks
json bench attention --json $small --dtype f64,bf16 --pass fwd,bwd --batch 3 --varlen --mask causal,document:20,intervals \
    --bias hq --dbias --alibi --sinks --softcap 3 --dropout 0.2 --layout bshd
json bench attention --json $small --pass fwd,bwd --seq-q 40 --bias none,k,b,h,q,bh,bhq --dbias
json bench attention --json $small --dtype bf16,f16 --pass bwd --out-dtype same,f32 --grad-dtype f32
grep -q '"dtype":"bf16","out_dtype":"f32","grad_dtype":"f32"' "$out" || complain 'out and gradients are not float'
json bench attention --json $small --dtype f32,bf16 --pass decode --seq-q 1,3 --kv same,i8 --page 0,16 --mask causal
grep -q '"mask":"causal-br"' "$out" || complain 'decode is not aligned bottom-right'
grep -q '"mask":"causal"' "$out" && complain 'decode is aligned top-left'
json bench attention --json $small --pass decode --varlen --page 0,16 --mask window:20,0 --alibi --sinks --softcap 5 \
    --bias h

# counted WHAT ARGUMENTS...: the program on standard input agrees with the JSON lines in the file that it gets
counted() {
    what=$1
    shift
    json bench attention --json --seconds 0.001 --dim 32 --heads 4 --heads-kv 2 "$@"
    if command -v python3 >/dev/null; then
        python3 - "$out" || complain "$what"
    fi
}
counted 'scores or operations are miscounted' --seq 96 --batch 2 --mask full,causal,window:9,0 <<'EOF'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [row["scores"] for row in rows] == [8 * n for n in (96 * 96, 96 * 97 // 2, 96 * 10 - 45)], rows
assert all(abs(row["gflops"] * row["ms"] / (row["scores"] * 4 * 32e-6) - 1) < 1e-9 for row in rows), rows
EOF
counted 'the bytes of a cache are miscounted' --pass decode --seq 64 --batch 3 --dtype f32,bf16 --kv same,i8 \
    --mask full,window:9,0 <<'EOF'
import json, sys
size = {"f32": 4, "bf16": 2, "i8": 1}
for row in map(json.loads, open(sys.argv[1])):
    keys = 64 if row["mask"] == "full" else 10
    assert row["bytes"] == 3 * 2 * keys * (64 * size[row["kv_dtype"]] + (8 if row["kv_dtype"] == "i8" else 0)), row
EOF
counted 'packed sequences are not of drawn lengths' --seq 50 --batch 4 --varlen <<'EOF'
import json, sys
row = json.loads(open(sys.argv[1]).read())
assert row["varlen"] and row["longest_q"] > 50 and row["scores"] > 4 * 4 * 50 * 50, row
EOF

json bench gemm --json --seconds 0.002 --size 64 --threads 1
OMP_THREAD_LIMIT=1 json bench gemm --json --seconds 0.002 --size 64 --threads 2
if grep -q '"op":"sgemm"' "$out"; then
    grep -q '"op":"sgemm".*"threads":1,' "$out" || complain 'the matrix product has more threads than OMP_THREAD_LIMIT'
    grep -q '1 of 2 threads' "$err" || complain 'no note about the threads that are missing'
fi
wrong "--size: '2.5'" bench gemm --size 2.5
json bench train --json --heads-kv 1 --hidden 32 --layers 1 --ffn 16 --head-dim 16,32 --seq 8,16 --tokens 32 --seconds 0.001
for field in op version device device_name threads dtype parameters hidden layers ffn vocab head_dim heads_kv seq batch attention \
    tokens_per_s ms mem_bytes; do
    grep -q "\"$field\":" "$out" || complain "no '$field' in what bench train prints"
done
right 'flash .* 1.00 ' bench train --attention flash --vocab 40 --hidden 32 --layers 1 --ffn 16 --head-dim 16 --seq 8 --tokens 32 \
    --seconds 0.001
wrong 'does not divide' bench train --hidden 32 --head-dim 12
wrong '3 does not divide the 2 heads' bench train --hidden 32 --head-dim 16 --heads-kv 3
json bench train --json --dtype bf16 --recompute --hidden 32 --layers 1 --ffn 16 --head-dim 16 --seq 16 --tokens 32 --seconds 0.001
[ "$(grep -c '"recompute":true' "$out")" -eq 2 ] || complain 'bench train --recompute has not four rows'

wrong "'nonsense'" gradcheck nonsense
wrong 'no backward kernel' gradcheck --kernel no_such_kernel
wrong '--samples: 0 is not in' gradcheck --samples 0
wrong '2^40 elements' gradcheck b4294967296/h4294967296/q4k4/d8
right '0 failed$' gradcheck --samples 3 --kernel ref q5k6/d4/causal
json gradcheck --json --samples 3 --kernel ref h4/gqa2/q5k6/d4
grep -q '"dbias":null' "$out" || complain 'dbias without bias'
json gradcheck --json --samples 3 --kernel ref h4/gqa2/q5k6/d4/bias:hqk/dbias:k/sinks/dlse
grep -q '"dbias":null' "$out" && complain 'no dbias with bias'
for join in merge ring; do
    json gradcheck --json --samples 3 --parts 3 --join $join h4/gqa2/q5k9/d4/bias:hqk/sinks/dlse/causal
    grep -q "\"join\":\"$join\",\"parts\":3" "$out" || complain "keys are not in parts, joined by $join"
done
right ' 0 failed$' gradcheck --samples 1
wrong 'broadcast' gradcheck q5k6/d4/broadcast
wrong 'dbias has a dimension' gradcheck h2/q5k6/d4/bias:k/dbias:hk
wrong 'without differing lengths' gradcheck --parts 2 b2/q5k6/d4/packed-seqs
wrong 'fewer keys than parts' gradcheck --parts 3 q5k2/d4
wrong '--parts: 3 needs a PROBLEM' gradcheck --parts 3
wrong "--join: 'glue'" gradcheck --parts 3 --join glue q5k6/d4

# FATTN_KERNEL overrules the automatic choice.
FATTN_KERNEL=ref right 'ref_forward' bench attention --seq 32 --seconds 0.001

finish
