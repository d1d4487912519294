#!/bin/sh
# Exit codes, messages and output forms of info, check, bench and gradcheck: commands.sh PROGRAM
fattn=$1
err=$(mktemp) && out=$(mktemp) || exit 1
trap 'rm -f "$err" "$out"' EXIT
. "$(dirname "$0")/checks.sh"

wrong 'no command'
wrong "'nonsense'" nonsense
right 'usage: fattn COMMAND' --help
right '^fattn [0-9]' --version
for command in info check 'bench attention' 'bench gemm' gradcheck; do
    right "usage: fattn $command" $command --help
    wrong "'--nonsense'" $command --nonsense
done
right 'attention|gemm' bench --help

json info --json
right 'ref_forward' info
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
wrong 'not enough memory' check forward/f32/b9/q4k4/d8/far
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
wrong '--dtype: bf16' bench attention --dtype bf16
wrong "--dtype: 'int8'" bench attention --dtype int8
wrong '--heads-kv: 3 does not divide --heads 8' bench attention --heads 8 --heads-kv 3
wrong "--preset: 'best'" bench attention --preset best
wrong '--seconds: 0 is not in' bench attention --seconds 0
wrong '2^40 elements' bench attention --batch 1000000000 --heads 1000000000 --seq 1000000000
wrong 'no_such_kernel' bench attention --kernel auto,no_such_kernel --seq 8
wrong 'more than 32' bench attention --mask "$(printf 'full,%.0s' $(seq 32))full"
right '^kernel' bench attention --seq 64,65 --mask full,causal,window:8,0 --kernel auto,ref --seconds 0.001
json bench attention --json --pass fwd,bwd,decode --seq 96 --heads 4 --heads-kv 2 --dim 32 --dim-v 16 --seconds 0.001
grep -q '"fraction_of_copy"' "$out" || complain 'decode without fraction_of_copy'
for field in op kernel device device_name dtype layout batch heads heads_kv seq_q seq_k dim dim_v mask threads ms ms_min runs \
    gflops peak_gflops fraction_of_peak bytes gbps workspace_bytes max_error; do
    grep -q "\"$field\":" "$out" || complain "bench attention --json lacks $field"
done
json bench gemm --json --seconds 0.002 --size 64 --threads 1
OMP_THREAD_LIMIT=1 json bench gemm --json --seconds 0.002 --size 64 --threads 2
if grep -q '"op":"sgemm"' "$out"; then
    grep -q '"op":"sgemm".*"threads":1,' "$out" || complain 'the matrix product has more threads than OMP_THREAD_LIMIT'
    grep -q '1 of 2 threads' "$err" || complain 'no note about the threads that are missing'
fi
wrong "--size: '2.5'" bench gemm --size 2.5

wrong "'nonsense'" gradcheck nonsense
wrong 'no backward kernel' gradcheck --kernel no_such_kernel
wrong '--samples: 0 is not in' gradcheck --samples 0
wrong '2^40 elements' gradcheck b4294967296/h4294967296/q4k4/d8
right '0 failed$' gradcheck --samples 3 --kernel ref q5k6/d4/causal
json gradcheck --json --samples 3 --kernel ref h4/gqa2/q5k6/d4

# FATTN_KERNEL overrules the automatic choice.
FATTN_KERNEL=ref right 'ref_forward' bench attention --seq 32 --seconds 0.001

finish
