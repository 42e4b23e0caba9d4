"""What all command lines share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from wdspack.errors import ConfigError, WdspackError

errors = Console(stderr=True)


@contextmanager
def explained() -> Iterator[None]:
    """An error that says what to do needs no traceback."""
    try:
        yield
    except (WdspackError, OSError) as error:
        errors.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def json_object(option: str, text: str | None) -> dict[str, Any]:
    """The value of an option. Raises ConfigError for anything but a JSON object; nothing is an empty one."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f'{option} {text!r}: must be an object, such as {{"anon": true}}')
    return found
