"""Prints what wdspack depends on, one requirement a line, so that dependencies can be installed before the source.

python docker/requirements.py [EXTRA …] < pyproject.toml

Extras that an extra names (`wdspack[convert,ray]`) are followed. Standard library only: it runs in a bare image.
"""

import re
import sys
import tomllib


def requirements(project: dict, extras: list[str]) -> list[str]:
    """The requirements of the extras alone; of the package itself where none is given."""
    found = [] if extras else list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            inner = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            found += requirements(project, [name.strip() for name in inner[1].split(",")]) if inner else [requirement]
    return found


if __name__ == "__main__":
    print(*requirements(tomllib.load(sys.stdin.buffer)["project"], sys.argv[1:]), sep="\n")
