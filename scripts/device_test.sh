#!/bin/sh
# Runs the CUDA device's tests on a machine with a GPU but no Go, from a test binary built elsewhere:
#   CGO_ENABLED=0 go test -c -o .bin/cuda.test ./internal/device/cuda
# Arguments go to the binary. SANITIZE=memcheck (or racecheck) runs it under compute-sanitizer.
set -eu
cd "$(dirname "$0")/.."
export LARDER_REQUIRE_CUDA=1
if [ -n "${SANITIZE:-}" ]; then
  exec compute-sanitizer --tool "$SANITIZE" --error-exitcode 9 .bin/cuda.test "$@"
fi
exec .bin/cuda.test "$@"
