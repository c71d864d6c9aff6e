#!/usr/bin/env bash
# Runs at_exit where nothing has been compiled yet: it has to be well in all three places, and to end with 0.
#   at_exit.sh PROGRAM CACHE
set -euo pipefail
rm -rf "$2"
said=$(NESTGRAD_CACHE=$2 "$1") || { echo "$said"; exit 1; }
echo "$said"
[[ $(grep -c '^well ' <<<"$said") -eq 3 ]]
