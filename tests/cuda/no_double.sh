#!/usr/bin/env bash
# Kernels of f32 have no instruction in double precision: a literal such as 0.5 in a formula would make one, silently.
#   no_double.sh NVCC ROOT
set -euo pipefail
nvcc=$1 root=$2
ptx=$(mktemp -d)
trap 'rm -rf "$ptx"' EXIT
for source in "$root"/cuda/*.cu; do
  [ "$(basename "$source")" != random.cu ] || continue  # normals are made in double, then rounded
  "$nvcc" -std=c++20 -arch=compute_90 -I"$root" -ptx "$source" -o "$ptx/$(basename "$source").ptx"
done
# Of a template's arguments f is float, d double. The cast from f32 to f64 is the control: it must be seen. sinf and
# cosf of CUDA reduce large arguments in double: the conversion of an integer, times this constant.
awk '
  /\.entry/ {
    match($0, /_Z[A-Za-z0-9_]*/); name = substr($0, RSTART, RLENGTH)
    control = name ~ /convertIfd/; f32 = name ~ /(I|E)f/ && name !~ /If?d|Ifd/; kernels += f32
  }
  /^}/ { f32 = control = 0 }
  !/\.f64[ \t.]/ || /\.reg|cvt\.rn\.f64\.s64|0d3BF921FB54442D19|cvt\.rn\.f32\.f64/ { next }
  control { seen_control = 1 }
  f32 { if (!seen[name]++) print "double precision in " name ":" $0; bad = 1 }
  END {
    if (!kernels || !seen_control) { print "the kernels were not read"; exit 1 }
    print kernels " kernels of f32 looked at"
    exit bad
  }' "$ptx"/*.ptx
