#!/usr/bin/env bash
# Unpacks the libraries that the build needs into deps/, for a machine with a GPU but without network or package
# manager: copy the repository there with that folder, and call scripts/gpu_check.sh. Debian 12 only: elsewhere some of
# these packages have other names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(libeigen3-dev libfmt-dev libfmt9 libcli11-dev nlohmann-json3-dev doctest-dev libmpfr-dev libmpfr6
  libgmp-dev libgmp10 libpng-dev libpng16-16 zlib1g-dev zlib1g)

downloaded=$(mktemp -d)
trap 'rm -rf "$downloaded"' EXIT
(cd "$downloaded" && apt-get download -q "${packages[@]}")
rm -rf deps
mkdir deps
for package in "$downloaded"/*.deb; do dpkg-deb -x "$package" deps; done
rm -rf deps/usr/share/doc
echo "gpu_prepare: $(du -sh deps | cut -f1) in deps/; take it along"
