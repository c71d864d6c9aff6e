#!/usr/bin/env bash
# Installs what the build needs and this machine lacks. Calls the package manager only when something is missing.
# NESTGRAD_SKIP_SETUP=1 skips it, for systems where the libraries came another way. With --browser also Chromium, in which
# tests open pages; with --docs also doxygen, for the site of the documents (scripts/site.sh); with --cross also clang, for
# the build with sanitizers, and what builds and runs programs for arm64 and riscv64 (on Debian and Ubuntu), for scripts/bits_elsewhere.sh;
# with --mpi also Open MPI and MPICH, for programs on several processes (docs/many-machines.md). Without them these tests
# are skipped.
set -euo pipefail

debian_packages=(cmake ninja-build g++ libeigen3-dev libfmt-dev libcli11-dev nlohmann-json3-dev doctest-dev libmpfr-dev libpng-dev
  libsentencepiece-dev zlib1g-dev python3)
fedora_packages=(cmake ninja-build gcc-c++ eigen3-devel fmt-devel cli11-devel json-devel doctest-devel mpfr-devel gmp-devel libpng-devel
  sentencepiece-devel zlib-devel python3)

die() {
  echo "setup: error: $*" >&2
  exit 1
}

as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root and no sudo here; run as root: $*"
  fi
}

debian_has() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }
fedora_has() { rpm -q --whatprovides "$1" &>/dev/null; }

debian_install() {
  as_root apt-get update -q || echo "setup: the package lists could not be refreshed; trying with the old ones" >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}
fedora_install() { as_root dnf install -y --setopt=install_weak_deps=False "$@"; }

if [[ -n ${NESTGRAD_SKIP_SETUP:-} ]]; then
  echo "setup: skipped, as NESTGRAD_SKIP_SETUP says"
  exit 0
fi

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  family=debian packages=("${debian_packages[@]}")
elif command -v dnf >/dev/null && command -v rpm >/dev/null; then
  family=fedora packages=("${fedora_packages[@]}")
else
  die "this is neither Debian/Ubuntu (apt-get) nor Fedora (dnf). Install CMake 3.25+, Ninja, a C++20 compiler, Eigen 3.4," \
    "fmt, CLI11, nlohmann-json, libpng, zlib, doctest and MPFR yourself, then run again with NESTGRAD_SKIP_SETUP=1"
fi

extra=()
if [[ " $* " == *" --cross "* ]]; then
  command -v clang++ >/dev/null || extra+=(clang)
  if [[ $family == debian ]]; then  # Fedora's cross compiler comes without a C library
    command -v aarch64-linux-gnu-g++ >/dev/null || extra+=(g++-aarch64-linux-gnu)
    command -v riscv64-linux-gnu-g++ >/dev/null || extra+=(g++-riscv64-linux-gnu)
    command -v qemu-aarch64 >/dev/null || extra+=(qemu-user)
  fi
fi
if [[ " $* " == *" --docs "* ]]; then
  command -v doxygen >/dev/null || extra+=(doxygen)
  if [[ $family == debian ]]; then extra+=(doxygen-awesome-css); fi  # the site's theme; Fedora has none
fi
if [[ " $* " == *" --mpi "* ]]; then
  if [[ $family == debian ]]; then extra+=(libopenmpi-dev openmpi-bin mpich libmpich-dev); else extra+=(openmpi-devel mpich-devel); fi
fi
if [[ " $* " == *" --browser "* ]] && ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null &&
  ! command -v google-chrome >/dev/null; then
  extra+=(chromium)
fi

missing=()
for package in "${packages[@]}" ${extra[@]+"${extra[@]}"}; do
  "${family}_has" "$package" || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "setup: everything is here"
else
  echo "setup: installing ${missing[*]}"
  "${family}_install" "${missing[@]}"
fi
