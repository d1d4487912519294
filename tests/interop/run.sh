#!/bin/sh
# The closed loop with the engines that can be had: run.sh PROGRAM VENV SECONDS PACKAGES...
#
# Each of PACKAGES that python3 (or $PYTHON) lacks is installed into VENV, for at most SECONDS in all; what is not there then is
# skipped by its name. The last line counts.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=$1 venv=$2 left=$3
shift 3
python=${PYTHON:-python3}

missing() { # those of the packages that $python does not find
  for package in "$@"; do
    "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$package') is None)" || echo "$package"
  done
}

if [ -n "$(missing "$@")" ] && [ -z "${PYTHON:-}" ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv --system-site-packages "$venv" || echo 'no virtual environment: python3-venv may be missing'
  [ -x "$venv/bin/python" ] && python=$venv/bin/python
fi
start=$(date +%s)
for package in $(missing "$@"); do
  echo "installing $package"
  timeout "$left" "$python" -m pip install --quiet --disable-pip-version-check "$package" || echo "$package: not installed"
  left=$((left - $(date +%s) + start))
  start=$(date +%s)
  [ "$left" -gt 1 ] || left=1
done
exec "$python" "$here/closed_loop.py" "$program"
