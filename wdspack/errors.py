"""What can go wrong, as one tree: catch `WdspackError` for all of it.

Every message says what was given, what is allowed, and what to do.
"""


class WdspackError(Exception):
    """The root of every error that wdspack raises on purpose."""


class ConfigError(WdspackError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class ShardError(WdspackError):
    """A shard that cannot be listed, opened or read to its end.

    Attributes:
        url: the shard.
        offset: the byte at which the damage was found (in the decompressed stream), None where there is none.
        reason: one word for the ledger, such as "truncated" or "missing".
    """

    def __init__(self, message: str, *, url: str = "", offset: int | None = None, reason: str = "damaged") -> None:
        where = f"{url}: " if url else ""
        at = f" (at byte {offset:,})" if offset is not None else ""
        super().__init__(f"{where}{message}{at}")
        self.url, self.offset, self.reason = url, offset, reason

    def __reduce__(self) -> tuple[object, ...]:  # exceptions cross process boundaries
        return _rebuild, (type(self), self.args, self.__dict__)


class SampleError(WdspackError):
    """A sample that cannot be used; counted and skipped unless `on_error="raise"`.

    Attributes:
        reason: one word for the ledger, such as "bad_json", "broken_image" or "too_long".
        tokens: the sample's length, where it got as far as that.
    """

    def __init__(self, message: str, *, reason: str, tokens: int = 0) -> None:
        super().__init__(message)
        self.reason, self.tokens = reason, tokens

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ResumeError(WdspackError):
    """A saved state that does not fit the configuration, or misses lanes."""


def _rebuild(cls: type[WdspackError], args: tuple[object, ...], state: dict[str, object]) -> WdspackError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
