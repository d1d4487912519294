#!/bin/sh
# Installs a build folder into a prefix of its own and builds clients against nothing but what was installed there:
#   the trainer and the program, through find_package(fattn);
#   README's example, through pkg-config, against the shared and against the static library;
#   the header alone, as C and, where there is a C++ compiler, as C++.
#
#   sh tests/install/run.sh build/release
set -eu
build=$(cd "${1:?build folder}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$build/install-test
prefix=$work/prefix
passed=0
skipped=0

ok() { passed=$((passed + 1)); echo "ok    $*"; }
skip() { skipped=$((skipped + 1)); echo "skip  $*"; }
trap 'status=$?; [ $status -eq 0 ] || echo "$passed passed, 1 failed, $skipped skipped"' EXIT

rm -rf "$work"
mkdir -p "$work"
{ cmake -B "$build" -DCMAKE_INSTALL_PREFIX="$prefix" && cmake --install "$build"; } >"$work/install.log" 2>&1 || { cat "$work/install.log"; exit 1; }
ok 'cmake --install'

library_dir=$(dirname "$(find "$prefix" -name fattn.pc)")/..
PKG_CONFIG_PATH=$library_dir/pkgconfig
LD_LIBRARY_PATH=$library_dir
export PKG_CONFIG_PATH LD_LIBRARY_PATH
cc=${CC:-cc}

# Hidden symbols: the shared library exports what the header declares, and nothing else.
shared=$(find "$library_dir/" -name 'libfattn.so' | head -n 1)
nm -D --defined-only "$shared" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort >"$work/exported"
grep -oE '^FATTN_API.*\(' "$prefix/include/fattn/fattn.h" | grep -oE 'fattn_[a-z0-9_]+ *\($' | tr -d ' (' | sort >"$work/declared"
diff "$work/declared" "$work/exported"
ok "exported symbols: the header's $(wc -l <"$work/declared") functions and no other"

# README's example.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md" >"$work/example.c"
$cc -std=c11 -Wall -Wextra -Werror "$work/example.c" $(pkg-config --cflags --libs fattn) -lm -o "$work/example"
"$work/example"
ok "README's example with the shared library"
archive=$(find "$library_dir/" -name 'libfattn.a' | head -n 1)
$cc -std=c11 "$work/example.c" $(pkg-config --cflags fattn) "$archive" \
  $(pkg-config --static --libs-only-l fattn | sed 's/-lfattn//') -lm -o "$work/example-static"
env -u LD_LIBRARY_PATH "$work/example-static" >/dev/null
ok "README's example with the static library"
$cc -std=c11 -pedantic-errors -Wall -Wextra -Werror -fsyntax-only -x c "$prefix/include/fattn/fattn.h" 2>"$work/header.log" ||
  { cat "$work/header.log"; exit 1; }
ok 'the header alone as strict C11'
if command -v c++ >/dev/null; then
  echo '#include <fattn/fattn.h>
int main() { fattn_desc desc = {}; (void)desc; return fattn_version()[0] == 0; }' >"$work/header.cpp"
  c++ -std=c++11 -Wall -Wextra -Werror "$work/header.cpp" $(pkg-config --cflags --libs fattn) -o "$work/header-cpp"
  "$work/header-cpp"
  ok 'the header as C++11'
else
  skip 'the header as C++11: no C++ compiler'
fi

# The trainer and the program.
cmake -S "$here" -B "$work/clients" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >"$work/clients.log" 2>&1 ||
  { cat "$work/clients.log"; exit 1; }
cmake --build "$work/clients" --parallel "$(getconf _NPROCESSORS_ONLN)" >>"$work/clients.log" 2>&1 ||
  { tail -n 60 "$work/clients.log"; exit 1; }
ok 'trainer and program against the installed tree'
program=$(find "$work/clients" -name fattn -type f -perm -100 | head -n 1)
"$program" info >/dev/null
ok 'that program runs'
if [ -x "$prefix/bin/fattn" ]; then
  env -u LD_LIBRARY_PATH "$prefix/bin/fattn" info >/dev/null
  ok 'the installed program runs without help from the environment'
fi
echo "$passed passed, 0 failed, $skipped skipped"
