#!/bin/sh
# The closed loop with the engines that can be had: run.sh PROGRAM VENV SECONDS PACKAGES...
#
# Each of PACKAGES that python3 lacks is installed into VENV, for at most SECONDS in all; what is not there then is skipped by its
# name. $PYTHON names an interpreter that is taken as it is. The last line counts.
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

install() { # install PACKAGES...: into the virtual environment, which is $python from then on
  [ -x "$venv/bin/python" ] || python3 -m venv --system-site-packages "$venv" || return
  python=$venv/bin/python
  for package in $(missing "$@"); do
    start=$(date +%s)
    echo "installing $package"
    timeout "$left" "$python" -m pip install --quiet --disable-pip-version-check "$package" || echo "$package: not installed"
    left=$((left - $(date +%s) + start))
    [ "$left" -gt 1 ] || left=1
  done
}

[ -n "${PYTHON:-}" ] || [ -z "$(missing "$@")" ] || install "$@" || echo 'no virtual environment: is python3-venv there?'
exec "$python" "$here/closed_loop.py" "$program"
