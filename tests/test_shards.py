"""Which shards: every syntax names what webdataset, the shell or a listing names; every lane split is a partition."""

import json
from collections import Counter

import fsspec
import pytest
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from wdspack.errors import ConfigError
from wdspack.shards import Share, expand_urls, lane_shards


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Shards a, b (.tar), c (.tar.gz), d (.tgz) in data/, beside files that are none; the current folder above it."""
    data = tmp_path / "data"
    (data / "deeper.tar").mkdir(parents=True)
    for name in ("b.tar", "a.tar", "c.tar.gz", "d.tgz", "notes.md", "deeper.tar/e.tar"):
        (data / name).touch()
    monkeypatch.chdir(tmp_path)
    return data


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [
    "x.tar", "x-{000..012}.tar", "s3://b/{a,b}/{0..3}.tar", "{7..3}.tar", "x{0..9..3}.tar", "x\\{0..3\\}.tar",
    "a.tar::b-{0..2}.tar::s3://c/d.tar", "{a{1,2},b}.tar", "gs://b/{train,val}-{00..01}.tgz",
])  # fmt: skip
def test_braces_are_webdatasets(pattern):
    theirs = [shard["url"] for shard in wds.SimpleShardList(pattern)]
    assert expand_urls(pattern) == theirs
    assert expand_urls([pattern]) == theirs


def test_a_hundred_thousand_shards_need_no_request(monkeypatch):
    monkeypatch.setattr("wdspack.storage.clients.url_to_fs", None)
    shards = expand_urls("s3://nowhere/{00000..99999}.tar")
    assert (shards[0], shards[-1], len(shards)) == ("s3://nowhere/00000.tar", "s3://nowhere/99999.tar", 100_000)


def test_a_list_keeps_its_order():
    assert expand_urls(["b.tar", "a-{1..2}.tar", "s3://x/y.tar"]) == ["b.tar", "a-1.tar", "a-2.tar", "s3://x/y.tar"]


def test_queries_of_http_are_no_globs():
    signed = "https://host/x.tar?X-Amz-Signature=a[b]*"
    assert expand_urls(signed) == [signed]


@pytest.mark.parametrize("form", ["relative", "absolute", "file"])
def test_globs_and_folders(folder, form):
    base = {"relative": "data/", "absolute": f"{folder}/", "file": f"file://{folder}/"}[form]
    tars = [base + name for name in ("a.tar", "b.tar")]
    assert expand_urls(base + "*.tar") == tars
    assert expand_urls(base + "[ab].tar") == expand_urls(base + "?.tar") == tars
    assert expand_urls(base + "{b,a}*.tar") == tars[::-1]  # each pattern is sorted by itself
    assert expand_urls(base) == [*tars, base + "c.tar.gz", base + "d.tgz"]
    assert expand_urls(base + "*/") == expand_urls(base + "**/e.tar") == [base + "deeper.tar/e.tar"]
    if form != "file":
        assert expand_urls(base.rstrip("/")) == expand_urls(base)


def test_globs_and_folders_of_a_store():
    fsspec.filesystem("memory").pipe({f"/globs/{name}": b"" for name in ("b.tar", "a.tar", "x.json", "sub/c.tar")})
    both = ["memory:///globs/a.tar", "memory:///globs/b.tar"]
    assert expand_urls("memory://globs/*.tar") == expand_urls("memory://globs/") == both


MANIFESTS = {
    "plain.txt": "# shards\n\na.tar\n  sub/b.tar  \r\n../up.tar\n/abs/c.tar\ns3://b/d.tar\n#e.tar\n",
    "list.json": '["a.tar", "sub/b.tar", "../up.tar", "/abs/c.tar", "s3://b/d.tar"]',
    "counts.json": json.dumps({"shards": [
        {"url": "a.tar", "samples": 5}, {"url": "sub/b.tar"}, "../up.tar", {"url": "/abs/c.tar"}, {"url": "s3://b/d.tar"},
    ]}),
    "bom.txt": "\ufeffa.tar\nsub/b.tar\n../up.tar\n/abs/c.tar\ns3://b/d.tar",
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(folder, name):
    (folder / name).write_text(MANIFESTS[name])
    fsspec.filesystem("memory").pipe(f"/m/n/{name}", MANIFESTS[name].encode())
    absolute = ["/abs/c.tar", "s3://b/d.tar"]
    assert expand_urls(f"data/{name}") == ["data/a.tar", "data/sub/b.tar", "up.tar", *absolute]
    assert expand_urls(f"{folder}/{name}") == [
        f"{folder}/a.tar",
        f"{folder}/sub/b.tar",
        f"{folder.parent}/up.tar",
        *absolute,
    ]
    assert expand_urls(f"memory://m/n/{name}") == [
        "memory://m/n/a.tar",
        "memory://m/n/sub/b.tar",
        "memory://m/up.tar",
        *absolute,
    ]


def test_names_in_a_manifest_are_literal(folder):
    (folder / "m.txt").write_text("odd{0..1}[x].tar\n")
    assert expand_urls("data/m.txt") == ["data/odd{0..1}[x].tar"]


@pytest.mark.parametrize(("urls", "said"), [
    ([], "names no shards"), ("", "names no shards"), ("data/*.zip", "data/*.zip"), ("nowhere/", "nowhere/"),
    ("data/deeper.tar/*/", "not there"), ("no.txt", "no.txt"), (["data/a.tar", "nowhere/*.tar"], "nowhere"),
    ("x{0..3.tar", "Unbalanced braces"), ("x${NO_SUCH}.tar", "environment"), ("data/empty.txt", "names no shards"),
    ("data/empty.json", "names no shards"), ("data/object.json", "not a manifest"), ("memory://none/*.tar", "none"),
    ("data/broken.json", "not a manifest"), ("data/number.json", "not a manifest"),
    ("data/latin.txt", "not a manifest"),
])  # fmt: skip
def test_what_names_no_shards(folder, urls, said):
    for name, content in {
        "empty.txt": b"# none\n\n", "empty.json": b"[]", "object.json": b'{"a": 1}', "broken.json": b"[",
        "number.json": b"[1]", "latin.txt": b"\xe9.tar",
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        expand_urls(urls)
    assert said in str(raised.value)


def test_duplicates_are_named():
    with pytest.raises(ConfigError, match=r"a-1\.tar, b\.tar;"):
        expand_urls(["a-{0..3}.tar", "a-1.tar", "b.tar", "b.tar"])
    with pytest.raises(ConfigError, match="and 15 more"):
        expand_urls(["a-{00..19}.tar", "a-{00..19}.tar"])


def test_a_store_that_cannot_be_listed():
    with pytest.raises(ConfigError, match="not known"):
        expand_urls("nosuchscheme://b/*.tar")


# --- lanes -------------------------------------------------------------------------------------------------------


def samples_of(shares, sizes):
    """(shard, ordinal) of each sample that the shares name."""
    return [(share.shard, n) for share in shares for n in range(sizes[share.shard]) if share.wants(n)]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=40),
    lanes=st.integers(1, 24),
    epoch=st.integers(0, 1000),
    shuffle=st.booleans(),
    seed=st.integers(-5, 2**70),
)
def test_every_sample_is_in_exactly_one_lane(sizes, lanes, epoch, shuffle, seed):
    common = {"lanes": lanes, "seed": seed, "source": 1, "epoch": epoch, "shuffle": shuffle}
    split = [lane_shards(len(sizes), lane=lane, **common) for lane in range(lanes)]
    everything = Counter(sample for shares in split for sample in samples_of(shares, sizes))
    assert everything == Counter((shard, n) for shard, size in enumerate(sizes) for n in range(size))
    for shares in split:
        assert [share.phase is None for share in shares] == [True] * (len(sizes) // lanes) + [False] * (
            len(sizes) % lanes
        )


def test_in_order_without_shuffling():
    common = {"lanes": 3, "seed": 5, "source": 0, "epoch": 0, "shuffle": False}
    assert [[share.shard for share in lane_shards(8, lane=lane, **common)] for lane in range(3)] == [
        [0, 3, 6, 7], [1, 4, 6, 7], [2, 5, 6, 7]
    ]  # fmt: skip
    assert lane_shards(2, **{**common, "lanes": 1}, lane=0) == [Share(0), Share(1)]


def test_the_order_depends_on_seed_source_and_epoch():
    base = {"lanes": 4, "lane": 1, "seed": 0, "source": 0, "epoch": 0, "shuffle": True}
    orders = [lane_shards(400, **{**base, **change}) for change in ({}, {}, {"seed": 1}, {"source": 1}, {"epoch": 1})]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 4


@settings(deadline=None, max_examples=50)
@given(lanes=st.integers(2, 64), whole=st.integers(0, 2), data=st.data())
def test_lanes_stay_level_over_left_over_shards_and_epochs(lanes, whole, data):
    """With shards of one size, lanes differ by a few samples, however many shards they have shared."""
    left = data.draw(st.integers(1, lanes - 1))
    size = data.draw(st.integers(1, 3 * lanes))
    shards = whole * lanes + left
    counts = dict.fromkeys(range(lanes), 0)
    for epoch in range(8):
        for lane in range(lanes):
            common = {"lanes": lanes, "lane": lane, "seed": 0, "source": 0, "epoch": epoch, "shuffle": True}
            for share in lane_shards(shards, **common):
                counts[lane] += size if share.phase is None else len(range(share.phase, size, share.stride))
        # dealt from residue 0 each time, lanes would come to differ by 8 * left
        assert max(counts.values()) - min(counts.values()) <= 5
