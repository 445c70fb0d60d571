#!/bin/sh
# Installs CUDA's run-time compiler from its Python package, without a GPU or a toolkit, and prints its folder:
#   LARDER_NVRTC=$(sh scripts/install_nvrtc.sh) go test ./internal/device/cuda
# The first argument is where to put it.
set -eu
dir=${1:-$(dirname "$0")/../data/nvrtc}
[ -d "$dir/bin" ] || python3 -m venv "$dir" >&2
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvrtc==13.0.88 >&2
lib=$(find "$(cd "$dir" && pwd)" -name 'libnvrtc.so.13' | head -n 1)
[ -n "$lib" ] || { echo "install_nvrtc: the package holds no libnvrtc.so.13" >&2; exit 1; }
dirname "$lib"
