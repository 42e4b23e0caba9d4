"""Which shards, in which order, for which lane.

"s3://b/{000..511}.tar", "data/*.tar", "shards.txt" ──expand_urls──▶ [url, …]   shard i is the i-th
(seed, source, epoch) ──lane_shards──▶ [Share(shard, phase, stride), …]         what one lane reads, in order
"""

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import isdir

import numpy as np
from webdataset.shardlists import expand_urls as expand_braces

from wdspack.errors import ConfigError, ShardError
from wdspack.hashing import permutation
from wdspack.storage import Options, list_files, read_file

_TAR = (".tar", ".tar.gz", ".tgz")
_SYNTAX = "a path or URL, braces as in {000..511}, a glob, a folder ending in '/', a .txt or .json manifest, or a list"
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio


@dataclass(frozen=True, slots=True)
class Share:
    """What a lane reads of a shard: all of it (phase None), or its samples with ordinal % stride == phase.

    shard: its place in the list that `expand_urls` gives.
    """

    shard: int
    phase: int | None = None
    stride: int = 1

    def wants(self, ordinal: int) -> bool:
        """Whether the sample with this number in the shard belongs to the lane."""
        return self.phase is None or ordinal % self.stride == self.phase


def expand_urls(urls: str | Sequence[str], *, storage_options: Options = None) -> list[str]:
    """The shards that `urls` stands for, in order; local ones as plain paths.

    Each entry may be, after braces and "::" have been expanded as webdataset does:
      * a glob (* ? [ ]), listed once and sorted;
      * a folder (a local one, or anything with a last "/"), for its .tar, .tar.gz and .tgz, listed once and sorted;
      * a manifest: .txt has one URL a line (empty lines and # comments are passed over), .json has a list of URLs or
        {"shards": [{"url": …}, …]}; its entries are taken literally, relative ones from the manifest's folder;
      * anything else: a shard, for which no request is made.

    Raises ConfigError if nothing is found, a pattern or manifest is malformed, or a shard comes twice; ShardError if
    the storage cannot be listed.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    found = [shard for pattern in patterns for shard in _expand(pattern, storage_options)]
    if not found:
        raise ConfigError(f"urls={urls!r} names no shards; give {_SYNTAX}")
    if twice := [url for url, count in Counter(found).items() if count > 1]:
        shown = ", ".join(twice[:5]) + (f" and {len(twice) - 5} more" if len(twice) > 5 else "")
        raise ConfigError(f"shards that come more than once: {shown}; name each once (to repeat data, use weights)")
    return found


def lane_shards(
    n_shards: int, *, lanes: int, lane: int, seed: int, source: int, epoch: int, shuffle: bool
) -> list[Share]:
    """What one lane reads of a source in one epoch, in order; over all lanes, each sample of each shard exactly once.

    1. Permute the shards by (seed, source, epoch), or leave them in order.
    2. Lane v takes every `lanes`-th, from the v-th, as long as all lanes get one.
    3. The left-over shards are read by all lanes, each its own residue of sample numbers modulo `lanes`. Which lane has
       residue 0 matters, as low residues get the odd sample more: it moves on with every shared shard, over epochs too,
       by the golden ratio of the circle of lanes, which spreads any number of turns evenly (a Kronecker sequence).
    """
    order = permutation(n_shards, seed, source, epoch) if shuffle else np.arange(n_shards)
    left = n_shards % lanes
    whole = [Share(shard) for shard in order[lane : n_shards - left : lanes].tolist()]
    shared = []
    for turn, shard in enumerate(order[n_shards - left :].tolist(), start=epoch * left):
        first = (turn * _GOLDEN % 2**64) * lanes >> 64
        shared.append(Share(shard, (lane - first) % lanes, lanes))
    return whole + shared


def _expand(pattern: str, storage_options: Options) -> Iterator[str]:
    try:
        urls: list[str] = expand_braces(pattern)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"urls={pattern!r}: {error}; give {_SYNTAX}") from error
    for url in filter(None, urls):
        queried = url.startswith(("http://", "https://")) or "?versionId=" in url
        path = url.partition("?")[0] if queried else url  # otherwise ? is a wildcard
        is_folder = path.endswith("/") or ("://" not in path and not path.endswith(_TAR) and isdir(path))
        try:
            if is_folder:
                files = list_files(posixpath.join(url, "*"), storage_options=storage_options)
                found = [file for file in files if file.endswith(_TAR)]
            elif any(wild in path for wild in "*?["):
                found = list_files(url, storage_options=storage_options)
            elif path.endswith((".txt", ".json")):
                found = _read_manifest(url, path, storage_options)
            else:
                found = [url]
        except ShardError as error:
            if error.reason != "missing":
                raise
            found = []
        if not found:
            raise ConfigError(f"urls={pattern!r}: {url} is not there or names no shards; give {_SYNTAX}")
        yield from found


def _read_manifest(url: str, path: str, storage_options: Options) -> list[str]:
    content = read_file(url, storage_options=storage_options)
    try:
        lines = content.decode("utf-8-sig")
        if path.endswith(".json"):
            listed = json.loads(lines)
            listed = listed["shards"] if isinstance(listed, dict) else listed
            entries = [entry if isinstance(entry, str) else str(entry["url"]) for entry in listed]
        else:
            entries = [line for line in map(str.strip, lines.splitlines()) if line and not line.startswith("#")]
    except (ValueError, KeyError, TypeError) as error:
        form = 'one URL a line (.txt), or [url, ...] or {"shards": [{"url": ...}, ...]} (.json)'
        raise ConfigError(f"{url} is not a manifest ({type(error).__name__}: {error}); write it as {form}") from error
    scheme, separator, rest = path.rpartition("://")
    folder = posixpath.dirname(rest)
    return [
        entry if "://" in entry or entry.startswith("/")
        else f"{scheme}{separator}{posixpath.normpath(posixpath.join(folder, entry))}"
        for entry in entries
    ]  # fmt: skip
