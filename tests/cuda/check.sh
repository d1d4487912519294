#!/bin/sh
# `fattn check --device cuda --quick`, or one test skipped where no GPU can be used.
#
#   sh tests/cuda/check.sh build/release/cli/fattn
set -u
output=$("${1:?program}" check --device cuda --quick 2>&1)
status=$?
case $output in
  *'--device: cuda:'*)
    echo "skipped: $output"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0 ;;
esac
echo "$output"
exit "$status"
