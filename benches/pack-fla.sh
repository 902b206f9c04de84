#!/usr/bin/env bash
# Puts flash-linear-attention's kernels where a machine without a package registry can import them:
#
#   benches/pack-fla.sh DIR    writes DIR/site (about 6 MB) and DIR/README
#
# There, which has PyTorch and Triton: export PYTHONPATH=DIR/site
#
# fla-core is the part without models; einops is all that it needs beside PyTorch and Triton. The
# package flash-linear-attention adds models, which want transformers.
set -euo pipefail
out=$(mkdir -p "${1:?usage: pack-fla.sh DIR}" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

packages=(fla-core==0.6.0 einops==0.8.2)
python3 -m pip download -q --no-deps --only-binary=:all: -d "$work" "${packages[@]}"
rm -rf "$out/site"
mkdir "$out/site"
for wheel in "$work"/*.whl; do python3 -m zipfile -e "$wheel" "$out/site"; done
echo "${packages[*]} for benches/gated.py: PYTHONPATH=<this folder>/site (needs PyTorch and Triton)" > "$out/README"
du -sh "$out/site"
