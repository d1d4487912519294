# What the tests of ranks share: sourced by ranks.sh, ranks_context.sh and ranks_failing.sh, which have set `fattn`, the program.
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
packed() { # packed FILE: tokens below 250 in documents of very different lengths, each with its end, 255
  python3 - "$1" <<'P'
import array, random, sys
draw = random.Random(7)
tokens = []
while len(tokens) < 12000:
    kind = draw.random()
    if kind < 0.15:
        tokens += [255] * 150  # whole windows without a target
    else:
        length = draw.randrange(1, 6) if kind < 0.7 else draw.randrange(50, 400)
        start = draw.randrange(250)
        tokens += [(start + 7 * i) % 250 for i in range(length)] + [255]
array.array("H", tokens).tofile(open(sys.argv[1], "wb"))
P
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
close_curve() { # close_curve LOG LOG STEPS [BOUND]: losses within 1e-6 of each other
  python3 - "$dir/$1" "$dir/$2" "$3" "${4:-1e-6}" <<'P' || complain "$1 and $2: losses differ"
import json, sys
a, b = ([e for e in map(json.loads, open(path)) if "loss" in e] for path in sys.argv[1:3])
worst = max(abs(x[k] / y[k] - 1) for x, y in zip(a, b) for k in ("loss", "val_loss") if k in x)
print("%s: losses differ by %.1e at most" % (sys.argv[2].split("/")[-1], worst))
sys.exit(not (len(a) == len(b) == int(sys.argv[3]) and worst < float(sys.argv[4])))
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

a_rank() { # a_rank PROCESS RANK: of the mpirun that this `timeout` has started
  ps -o pid= --ppid "$(ps -o pid= --ppid "$1" | tr -d ' ')" | sed -n "$(($2 + 1))p"
}

need_mpi() { # need_mpi SECTIONS: else the test ends, with so many skipped
  RANK=0 WORLD_SIZE=2 "$fattn" $tiny >/dev/null 2>"$err"
  case $(cat "$err") in
    *'built without MPI'*) reason='the program was built without MPI' ;;
    *) reason= ;;
  esac
  mpirun --version 2>/dev/null | grep -q 'Open MPI' || reason=${reason:-no mpirun of OpenMPI}
  if [ "$reason" ]; then
    echo "skipped: $reason"
    finish "$1"
  fi
}
