#!/bin/sh
# Writes docker/constraints.txt: the newest versions that pyproject.toml allows, on every Python and platform it runs on.
# Needs uv. torch and its CUDA libraries are left out: the base image brings them, or the build argument TORCH.
set -eu
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --no-annotate --no-header --upgrade \
  -o docker/constraints.in.tmp --quiet
{
  echo "# Made by docker/lock.sh; torch comes with the base image, or from the build argument TORCH."
  grep -vE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==' docker/constraints.in.tmp
} > docker/constraints.txt
rm docker/constraints.in.tmp
