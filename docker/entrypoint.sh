#!/bin/sh
# docker run IMAGE demo …                  → wdspack demo …
# docker run IMAGE tools/convert_x.py …    → python, with that tool
# docker run IMAGE torchrun …              → as it stands (also python, sh, bash, pytest, and any path)
set -eu
case "${1-}" in
  tools/*) exec python "/opt/wdspack/$@" ;;
  python | python3 | torchrun | pytest | sh | bash | /*) exec "$@" ;;
  *) exec wdspack "$@" ;;
esac
