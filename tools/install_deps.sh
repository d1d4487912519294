#!/bin/sh
# Installs what is needed to build and test fattn, where it is missing. Debian, Ubuntu and their kin: through apt-get, as
# root or with sudo. Elsewhere: says what to install, and exits 1. Prints nothing when nothing is missing.
#
#   sh tools/install_deps.sh         a C compiler, make, CMake, pkg-config, Python, oneDNN, cmocka, cJSON
#   sh tools/install_deps.sh --ci    also Clang with its OpenMP and sanitizer runtimes, clang-format, a compiler and an
#                                    emulator of aarch64, and OpenMPI
set -eu

ci=no
case "${1:-}" in
  '') ;;
  --ci) ci=yes ;;
  *) echo "install_deps.sh: unknown argument '$1'; it takes --ci or nothing" >&2; exit 2 ;;
esac

has() { command -v "$1" >/dev/null 2>&1; }

elsewhere() {
  cat >&2 <<'TEXT'
install_deps.sh: this system has no apt-get, so nothing was installed. Install these with its own package manager:
  a C11 compiler (GCC 9 or Clang 11, or later), make, CMake 3.21 or later, pkg-config, Python 3.8 or later,
  oneDNN 2.x or 3.x with its C header dnnl.h, cmocka, cJSON
Fedora:  dnf install gcc make cmake pkgconf python3 onednn-devel libcmocka-devel cjson-devel
Arch:    pacman -S gcc make cmake pkgconf python onednn cmocka cjson
The library alone needs only the compiler and CMake:
  cmake -B build -DFATTN_WITH_ONEDNN=OFF -DFATTN_BUILD_PROGRAM=OFF -DFATTN_BUILD_TESTS=OFF && cmake --build build
TEXT
  exit 1
}

complete() { # is everything there, going by the tools and headers alone?
  for tool in cc make cmake pkg-config python3; do
    has "$tool" || return 1
  done
  for header in dnnl.h cmocka.h cjson/cJSON.h; do
    echo "#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <$header>" | cc -E -x c - >/dev/null 2>&1 || return 1
  done
}

if ! has apt-get || ! has dpkg-query; then
  complete && [ $ci = no ] && exit 0
  elsewhere
fi

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing=
want() { missing="$missing $1"; }
has cc || want gcc
installed libc6-dev || want libc6-dev
has make || want make
has cmake || want cmake
has pkg-config || want pkg-config
has python3 || want python3
for package in libdnnl-dev libcmocka-dev libcjson-dev; do
  installed $package || want $package
done
if [ $ci = yes ]; then
  has gcc || want gcc
  has clang || want clang
  has clang-format || want clang-format
  installed libomp-dev || want libomp-dev
  # libFuzzer and the sanitizers' runtimes: a package of their own since Clang 14, only recommended by clang.
  [ -n "$(find /usr/lib/llvm-*/lib/clang -name 'libclang_rt.fuzzer-*' 2>/dev/null | head -n 1)" ] || want libclang-rt-dev
  has aarch64-linux-gnu-gcc || want gcc-aarch64-linux-gnu
  installed libc6-dev-arm64-cross || want libc6-dev-arm64-cross
  has qemu-aarch64 || want qemu-user
  has mpirun || want openmpi-bin
  python3 -c 'import ensurepip' 2>/dev/null || want python3-venv
  [ -n "$(find /usr/include /usr/lib -name mpi.h 2>/dev/null | head -n 1)" ] || want libopenmpi-dev
fi
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" -ne 0 ]; then
  if ! has sudo; then
    echo "install_deps.sh: not root, and there is no sudo. As root, run: apt-get install$missing" >&2
    exit 1
  fi
  root=sudo
fi

# The lists are fetched only if a package is not in them, or if what they name is no longer there.
known() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
updated=no
update() {
  [ $updated = no ] || return 1
  updated=yes
  echo "install_deps.sh: apt-get update" >&2
  $root apt-get update -qq
}
install() {
  $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
}

for package in $missing; do
  known "$package" || { update || true; break; }
done
unknown=
for package in $missing; do
  known "$package" || unknown="$unknown $package"
done
if [ -n "$unknown" ]; then
  echo "install_deps.sh: this system's package lists do not have$unknown" >&2
  case "$unknown" in
    *libdnnl-dev*)
      cat >&2 <<'TEXT'
oneDNN is the matrix product of the trainer and of the kernel `composed`. Install it from another source, or build the
library alone:
  cmake -B build -DFATTN_WITH_ONEDNN=OFF -DFATTN_BUILD_PROGRAM=OFF -DFATTN_BUILD_TESTS=OFF && cmake --build build
TEXT
      ;;
    *) echo "On Ubuntu they are in the section 'universe'." >&2 ;;
  esac
  exit 1
fi

echo "install_deps.sh: installing$missing" >&2
install || { update && install; }
