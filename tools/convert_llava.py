#!/usr/bin/env python
"""Converts LLaVA's JSON or JSONL: `conversations` with `<image>` markers, and a folder of images.

python tools/convert_llava.py llava_v1_5_mix665k.json shards/ --images data/ --workers 8 --shuffle 0
"""

from convert_messages import messages as llava

from wdspack.convert import cli

if __name__ == "__main__":
    cli.run(llava)
