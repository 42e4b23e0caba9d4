"""A folder of images with texts beside them: `a/b.jpg` and `a/b.txt` (a caption) or `a/b.json` (any known form)."""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wdspack.convert.compose import Draft
from wdspack.convert.imageroot import ImageRoot
from wdspack.convert.readers.base import PART_ROWS, DraftReader
from wdspack.convert.readers.inputs import is_local, listed_below
from wdspack.convert.rows import Part, Reject
from wdspack.errors import ConfigError, SampleError
from wdspack.records import IMAGE_EXTENSIONS, parse_json


@dataclass(frozen=True, kw_only=True)
class FolderReader(DraftReader):
    """A row is a stem that has an image, a .txt or a .json, at any depth; its id is the path from the folder.

    folder: a path or URL; it is listed once, and the listing held. Rejected are stems without an image ("no_image"),
    without a text ("no_text"), and with several images ("several_images"). With both texts the json counts where it has
    turns; otherwise the caption does, and the json is kept beside it.
    """

    folder: str

    def find_parts(self) -> Sequence[Part]:
        base = self.folder.rstrip("/") or "/"
        files = listed_below(base, self.storage_options)
        if not files:
            raise ConfigError(f"{self.folder} is not there, or holds no files; give a folder of images and texts")
        stems: dict[str, list[str]] = {}
        for file in files:
            stem, dot, extension = _below(base, file).rpartition(".")
            if dot and (extension.lower() in IMAGE_EXTENSIONS or extension.lower() in ("txt", "json")):
                stems.setdefault(stem, []).append(extension)
        rows = sorted((stem, tuple(sorted(extensions))) for stem, extensions in stems.items())
        starts = range(0, len(rows), PART_ROWS)
        return [Part(f"{base}/", len(rows[at : at + PART_ROWS]), tuple(rows[at : at + PART_ROWS])) for at in starts]

    def sources(self, parts: Sequence[Part]) -> Sequence[str]:
        """The texts; not those of a remote folder, as each would cost a request."""
        if not is_local(self.folder):
            return []
        rows = (row for part in parts for row in part.place)
        kept = ((stem, extension) for stem, extensions in rows for extension in extensions)
        texts = (f"{stem}.{extension}" for stem, extension in kept if extension.lower() in ("txt", "json"))
        return [posixpath.join(self.folder, text) for text in texts]

    def finds(self, url: str) -> bool:
        return url.startswith(posixpath.join(self.folder, "")) and url.endswith((".json", ".txt"))

    def drafts(self, part: Part, start: int, stop: int) -> Iterator[Draft | Reject]:
        root = ImageRoot(self.folder, self.storage_options)
        for stem, extensions in part.place[start:stop]:
            yield _draft(root, stem, extensions)


def _below(base: str, file: str) -> str:
    """The path of a listed file from the folder. Some stores put a slash before their names, others do not."""
    if "://" not in file:
        return posixpath.relpath(file, base)
    inside = base.partition("://")[2].strip("/")
    return file.partition("://")[2].lstrip("/").removeprefix(f"{inside}/")


def _draft(root: ImageRoot, stem: str, extensions: Sequence[str]) -> Draft | Reject:
    images = [extension for extension in extensions if extension.lower() in IMAGE_EXTENSIONS]
    texts = {extension.lower(): extension for extension in extensions if extension not in images}
    if not images:
        return Reject(stem, "no_image", f"{', '.join(extensions)} without an image of the same name; add it")
    if len(images) > 1:
        return Reject(stem, "several_images", f"{', '.join(images)} have one name; give each image a name of its own")
    if not texts:
        return Reject(stem, "no_text", f"{images[0]} without a .txt or .json of the same name; add one")
    try:
        found = {kind: root.fetch(f"{stem}.{extension}") for kind, extension in texts.items()}
        record = parse_json(found["json"]) if "json" in found else {}
    except SampleError as error:
        return Reject(stem, error.reason, str(error))
    return Draft(stem, record, (f"{stem}.{images[0]}",), txt=found.get("txt"))
