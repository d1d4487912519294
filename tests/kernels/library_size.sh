#!/bin/sh
# The shared library takes at most so many MB.
#
#   sh tests/kernels/library_size.sh build/release/src/libfattn.so 8
set -eu
bytes=$(wc -c <"${1:?library}")
echo "$1 has $bytes bytes; at most ${2:?MB} MB"
[ "$bytes" -gt 0 ] && [ "$bytes" -le $(($2 * 1000000)) ]
