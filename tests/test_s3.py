"""Streaming from a real S3 server: the packs of the local disk whatever the network does, or an error that says why."""

import json
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import Shards, digest
from fault_proxy import Fault, FaultProxy
from s3 import bucketed, places, source

import wdspack
from wdspack.serve import S3Server

LAYOUT = wdspack.TileLayout(tile=32, max_side=32, tokens_per_tile=4)
COUNTS = [150, 3, 25, 0, 25]  # the first is two requests with the smallest budget


def sequence(loader):
    with closing(loader):
        return [digest(pack, urls=False) for pack in loader]


@pytest.fixture(scope="module")
def config(tokenizer_path):
    def make(sources, **changes):
        return wdspack.DataConfig(
            **{
                "sources": sources, "tokenizer": tokenizer_path, "layout": LAYOUT, "seq_len": 256, "buffer_size": 8,
                "epochs": 1, "lanes": 2, "prefetch_bytes": 1, "retry_seconds": 20.0, "stall_seconds": 2.0,
                "max_drop_share": 1.0, **changes,
            }
        )  # fmt: skip

    return make


@pytest.fixture(scope="module")
def corpus(s3, config, tmp_path_factory):
    """Shards on the disk and in a bucket, and what comes of them: the packs and the ledger."""
    shards = Shards(tmp_path_factory.mktemp("shards"), counts=COUNTS, bad_json=0.02, broken_image=0.02, words=10)
    loader = wdspack.make_loader(config(wdspack.Source(urls=tuple(shards.urls), name="shard")), batch_size=None)
    packs = sequence(loader)
    return SimpleNamespace(
        paths=shards.urls, urls=bucketed(s3, shards.urls, "corpus"), packs=packs, ledger=loader.ledger, shards=shards
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_packs_from_s3_are_those_from_the_disk(s3, config, corpus, workers):
    loader = wdspack.make_loader(config(source(s3, corpus.urls)), batch_size=None, num_workers=workers)
    assert sequence(loader) == corpus.packs
    assert loader.ledger == corpus.ledger
    storage = loader.ledger.storage
    assert storage["bytes"] >= sum(Path(path).stat().st_size for path in corpus.paths)
    assert storage["requests"] >= len(corpus.urls)
    assert not any(name.startswith("retried") for name in storage)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (2, 0)])
def test_resuming_goes_on_with_the_very_next_pack(s3, config, corpus, before, after):
    plan = config(source(s3, corpus.urls))
    with closing(wdspack.make_loader(plan, batch_size=None, num_workers=before)) as first:
        head = [digest(pack, urls=False) for pack in islice(first, len(corpus.packs) // 2)]
        state = json.loads(json.dumps(first.state_dict()))
    loader = wdspack.make_loader(plan, batch_size=None, num_workers=after)
    loader.load_state_dict(state)
    assert head + sequence(loader) == corpus.packs
    assert loader.ledger == corpus.ledger


def test_environment_and_listing_work_as_people_expect(s3, config, corpus, monkeypatch):
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    folder = f"s3://{s3.bucket}/corpus"
    s3.client().put_object(Bucket=s3.bucket, Key="lists/all.txt", Body="\n".join(corpus.urls).encode())
    for urls in (
        f"{folder}/*.tar",
        f"{folder}/",
        f"{folder}/shard-{{0000..0004}}.tar",
        f"s3://{s3.bucket}/lists/all.txt",
    ):
        assert sequence(wdspack.make_loader(config(urls), batch_size=None)) == corpus.packs


# --- faults that pass --------------------------------------------------------------------------------------------

SLOW_DOWN = Fault(kind="answer", status=503, code="SlowDown", times=3)
FAULTS = {
    "reset at a header byte": ("header", [Fault(kind="reset")], "reset"),
    "reset at a data byte": ("data", [Fault(kind="reset", times=2)], "reset"),
    "reset at a member boundary": ("boundary", [Fault(kind="reset")], "reset"),
    "reset at the last byte": ("last", [Fault(kind="reset")], "reset"),
    "reset before the first byte": (None, [Fault(kind="reset")], "reset"),
    "SlowDown in bursts": (None, [SLOW_DOWN, Fault(kind="answer", code="SlowDown", skip=2, times=2)], "throttled"),
    "an internal error": (None, [Fault(kind="answer", status=500, code="InternalError")], "unavailable"),
    "a stalled body": ("data", [Fault(kind="stall")], "stalled"),
    "a body that crawls": ("data", [Fault(kind="slow", rate=3000)], "stalled"),
    "a body cut off, its length promised": ("data", [Fault(kind="cut")], "reset"),
    "a body shorter than asked for": ("data", [Fault(kind="short")], "short"),
}


def placed(fault, path, where):
    """The fault, at a place of the first shard."""
    return replace(fault, path=Path(path).name, at=places(path)[where])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_passes_changes_nothing_and_is_counted(s3, config, corpus, name):
    where, faults, why = FAULTS[name]
    faults = [placed(fault, corpus.paths[0], where) if where else fault for fault in faults]
    with FaultProxy(s3.endpoint, faults) as proxy:
        loader = wdspack.make_loader(config(source(s3, corpus.urls, proxy.endpoint)), batch_size=None)
        assert sequence(loader) == corpus.packs
    assert loader.ledger == corpus.ledger
    struck = sum(int(fault.times) for fault in faults)
    assert sum(proxy.count(answer=kind) for kind in {fault.kind for fault in faults}) == struck
    assert loader.ledger.storage[f"retried_{why}"] == struck
    assert loader.ledger.storage["requests"] == proxy.count()


def test_a_slow_body_is_waited_for(s3, config, corpus):
    slow = placed(Fault(kind="slow", rate=200_000), corpus.paths[0], "data")
    with FaultProxy(s3.endpoint, [slow]) as proxy:
        loader = wdspack.make_loader(config(source(s3, corpus.urls, proxy.endpoint)), batch_size=None)
        assert sequence(loader) == corpus.packs
        assert proxy.count(answer="slow") == 1
    assert not any(name.startswith("retried") for name in loader.ledger.storage)


@pytest.mark.parametrize("workers", [0, 2])
def test_all_at_once(s3, config, corpus, workers):
    """Most answers break off, are too short or are refused."""
    faults = [
        Fault(kind="reset", after=20_000, share=0.3, times=float("inf")),
        Fault(kind="short", after=5_000, share=0.3, times=float("inf")),
        Fault(kind="answer", code="SlowDown", share=0.3, times=float("inf")),
    ]
    with FaultProxy(s3.endpoint, faults, first_byte=0.005, jitter=0.005) as proxy:
        plan = config(source(s3, corpus.urls, proxy.endpoint))
        loader = wdspack.make_loader(plan, batch_size=None, num_workers=workers)
        assert sequence(loader) == corpus.packs
        assert proxy.count() > proxy.count(answer="206") > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_killed_and_restarted_in_the_middle_of_a_shard(s3, config, corpus, tmp_path, workers):
    with type(s3)(tmp_path / "server") as server, FaultProxy(server.endpoint) as proxy:
        urls = bucketed(server, corpus.paths, "corpus")
        restart = threading.Timer(1.0, server.start)

        def kill():
            server.kill()
            restart.start()

        proxy.inject(placed(Fault(kind="reset", then=kill), corpus.paths[0], "data"))
        loader = wdspack.make_loader(config(source(server, urls, proxy.endpoint)), batch_size=None, num_workers=workers)
        assert sequence(loader) == corpus.packs
        assert loader.ledger.storage["retried_reset"] >= 1
        assert proxy.count(answer="down") >= 1
        restart.join()


def test_a_server_that_is_down_at_first(s3, config, corpus, tmp_path):
    with type(s3)(tmp_path / "server") as server:
        urls = bucketed(server, corpus.paths, "corpus")
        server.kill()
        restart = threading.Timer(0.5, server.start)
        restart.start()
        loader = wdspack.make_loader(config(source(server, urls)), batch_size=None)
        assert sequence(loader) == corpus.packs
        assert loader.ledger.storage["retried_refused"] >= 1
        restart.join()


# --- faults that stay --------------------------------------------------------------------------------------------


@pytest.fixture
def broken(s3, corpus, request):
    """A source that cannot be read, by the reason why, and the proxy in between."""
    name, reason = f"broken/{request.param}.tar", request.param
    path, client, data = Path(corpus.paths[0]), s3.client(), Path(corpus.paths[0]).read_bytes()
    url, options, cut = f"s3://{s3.bucket}/{name}", {}, places(str(path))["data"]
    client.put_object(Bucket=s3.bucket, Key=name, Body=data[:cut] if reason == "truncated" else data)
    proxy = FaultProxy(s3.endpoint)
    if reason == "missing":
        client.delete_object(Bucket=s3.bucket, Key=name)
    elif reason == "denied":
        options = {"secret": "not the secret"}
    elif reason == "no_bucket":
        url = f"s3://no-such-bucket/{name}"
    elif reason == "expired":
        proxy.inject(Fault(kind="answer", path=name, times=float("inf"), status=400, code="ExpiredToken"))
    elif reason == "changed":
        other = Path(corpus.paths[2]).read_bytes()
        put = partial(client.put_object, Bucket=s3.bucket, Key=name, Body=other)
        proxy.inject(Fault(kind="reset", path=name, at=cut, then=put))
    elif reason == "unreadable":
        proxy.inject(Fault(kind="answer", path=name, times=float("inf")))
    with proxy:
        found = source(s3, [url], proxy.endpoint, **options)
        yield SimpleNamespace(reason=reason, url=url, source=replace(found, name="broken"))


ADVICE = {
    "missing": "check the name",
    "denied": "check the key and secret",
    "no_bucket": "check its name, the endpoint and the region",
    "expired": "renew",
    "changed": "replaced while it was read",
    "truncated": "fetch|again|write",
    "unreadable": "attempts in .* without a byte",
}


def raises(config, sources, broken, workers=0):
    patience = 1.0 if broken.reason == "unreadable" else 20.0
    plan = config(sources, retry_seconds=patience)
    with pytest.raises(wdspack.ShardError, match=ADVICE[broken.reason]) as raised:
        sequence(wdspack.make_loader(plan, batch_size=None, num_workers=workers))
    assert (raised.value.reason, raised.value.url) == (broken.reason, broken.url)
    assert broken.url in str(raised.value)


@pytest.mark.parametrize("broken", ADVICE, indirect=True)
def test_what_does_not_pass_is_an_error_that_says_what_to_do(s3, config, corpus, broken):
    raises(config, [source(s3, corpus.urls), broken.source], broken)


@pytest.mark.parametrize("broken", ["expired"], indirect=True)
def test_so_it_is_from_a_worker(s3, config, corpus, broken):
    raises(config, [source(s3, corpus.urls), broken.source], broken, workers=2)


@pytest.mark.parametrize("broken", ADVICE, indirect=True)
def test_what_does_not_pass_is_a_counted_loss_where_losses_are_allowed(s3, config, corpus, broken):
    patience = 1.0 if broken.reason == "unreadable" else 20.0
    plan = config([source(s3, corpus.urls), broken.source], retry_seconds=patience, on_error="skip", lanes=1)
    loader = wdspack.make_loader(plan, batch_size=None)
    with closing(loader):
        keys = [key for pack in loader for url, key in pack["keys"] if url in corpus.urls]
    assert sorted(keys) == sorted(corpus.shards.sound)
    assert loader.ledger.sources["broken"].shards == {f"lost_{broken.reason}": 1}
    assert loader.ledger.sources["shard"].shards == {"finished": len(COUNTS)}
    assert loader.ledger.unaccounted() == {}


def test_an_outage_that_lasts_is_told_and_then_survived(config, corpus, tmp_path):
    """The same loader goes on when the server is back: from the pack after the last, its held samples read again."""
    with S3Server(tmp_path) as server:
        urls = bucketed(server, corpus.paths, "corpus")
        loader = wdspack.make_loader(config(source(server, urls), retry_seconds=0.5), batch_size=None)
        head = [digest(pack, urls=False) for pack in islice(loader, 3)]
        server.kill()
        with pytest.raises(wdspack.ShardError, match="without a byte") as raised:
            head.extend(digest(pack, urls=False) for pack in loader)
        assert raised.value.reason == "unreadable"
        lost = loader.ledger.storage
        assert sum(n for why, n in lost.items() if why.startswith("retried")) >= 1
        with pytest.raises(wdspack.ShardError, match="without a byte"):  # no wrong word of shards that changed
            next(loader)
        server.start()
        assert head + sequence(loader) == corpus.packs
        assert loader.ledger == corpus.ledger


def test_skipping_says_what_was_lost(s3, config, corpus, caplog):
    plan = config(source(s3, corpus.urls, secret="wrong-secret"), on_error="skip")
    loader = wdspack.make_loader(plan, batch_size=None, num_workers=0)
    with pytest.raises(wdspack.WdspackError, match=r"no sample \(shards lost: denied 5\)"):
        next(loader)
    assert any("on_error='skip'" in message and corpus.urls[0] in message for message in caplog.messages)
