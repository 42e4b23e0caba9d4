"""S3 from many processes and threads: clients are never shared across a fork, and nothing is left behind."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

import psutil
import pytest
from fault_proxy import FaultProxy
from s3 import bucketed, source

import wdspack
from wdspack.shards import expand_urls
from wdspack.storage import Access, Successive, open_shard, read_file

LAYOUT = wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_after_the_client_was_used(s3, shards, tokenizer_path, method, tmp_path):
    """In a process of its own, which must also end, with nothing to complain of."""
    local = shards(counts=[12, 9, 14, 7])
    urls = bucketed(s3, local.urls, f"start-{method}")
    script = f"""
        import json, threading
        import wdspack
        from wdspack.storage import read_file

        def main():
            options = {s3.storage_options!r}
            read_file({urls[0]!r}, storage_options=options)  # a client, its loop's thread and its sockets
            keys = []
            for sources in ({urls!r}, {local.urls!r}):
                remote = sources[0].startswith("s3:")
                config = wdspack.DataConfig(
                    sources=wdspack.Source(urls=sources, name="shard", storage_options=options if remote else {{}}),
                    tokenizer={tokenizer_path!r}, layout=wdspack.TileLayout(tile=32, max_side=64, tokens_per_tile=4),
                    seq_len=256, buffer_size=8, lanes=4, epochs=1,
                )
                workers = 2 * remote
                loader = wdspack.make_loader(config, num_workers=workers, multiprocessing_context={method!r})
                keys.append([key for batch in loader for pack in batch["meta"]["keys"] for _, key in pack])
            assert keys[0] == keys[1], keys
            assert len(keys[0]) == len(set(keys[0])) == 42
            loader = wdspack.make_loader(config, num_workers=2, multiprocessing_context={method!r})
            next(loader)  # and leaves, in the middle of everything

        if __name__ == "__main__":
            main()
            print("done")
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("ending", ["raise RuntimeError('mine')", "os._exit(3)", "sys.exit(3)", "pass"])
def test_a_process_that_ends_in_the_middle_of_a_shard_ends(s3, tmp_path, ending):
    (tmp_path / "large.bin").write_bytes(bytes(40_000_000))
    (url,) = bucketed(s3, [str(tmp_path / "large.bin")], "ending")
    code = f"""
        import os, sys
        from wdspack.storage import open_shard
        stream = open_shard({url!r}, storage_options={s3.storage_options!r})
        stream.read(10)
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == (0 if ending == "pass" else 1 if "mine" in ending else 3)
    assert done.stderr == "" or (done.stderr.endswith("RuntimeError: mine\n") and "mine" in ending)


def test_a_thousand_shards_leave_no_socket_thread_or_memory_behind(s3):
    client = s3.client()
    for n in range(50):
        client.put_object(Bucket=s3.bucket, Key=f"many/{n}.bin", Body=bytes([n]) * 20_000)
    access, process, seen = Access(), psutil.Process(), []
    urls = [f"s3://{s3.bucket}/many/{n % 50}.bin" for n in range(1000)]
    shards = Successive(iter([*urls, *urls]), storage_options=s3.storage_options, access=access)
    for n, url in enumerate(urls):
        with shards.open(url) as stream:
            if n % 3:  # some are left early
                assert stream.read(30_000) == bytes([n % 50]) * 20_000
        if n % 100 == 98:  # with some begun that nobody will open
            shards.close()
            shards = Successive(iter(urls[n + 1 :]), storage_options=s3.storage_options, access=access)
        if n % 100 == 99:
            gc.collect()
            seen.append((process.num_fds(), threading.active_count()))
    assert seen[-1][0] <= seen[0][0] + 2
    assert seen[-1][1] <= seen[0][1]
    assert access.budget._used == 0


def test_threads_that_read_at_the_same_time(s3):
    contents = {n: bytes([n]) * (200_000 + n) for n in range(8)}
    client, access, found = s3.client(), Access(), {}
    for n, data in contents.items():
        client.put_object(Bucket=s3.bucket, Key=f"threads/{n}.bin", Body=data)

    def read(n: int) -> None:
        with open_shard(
            f"s3://{s3.bucket}/threads/{n}.bin", storage_options=s3.storage_options, access=access
        ) as stream:
            found[n] = stream.read(10**6)

    threads = [threading.Thread(target=read, args=(n,)) for n in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == contents


def test_a_prefix_of_a_thousand_is_listed_once_page_by_page(s3, tokenizer_path):
    client, count = s3.client(), 1050  # more than a page of 1,000
    for n in range(count):
        client.put_object(Bucket=s3.bucket, Key=f"pages/{n:05d}.tar", Body=b"")
    with FaultProxy(s3.endpoint) as proxy:
        options = {**s3.storage_options, "endpoint_url": proxy.endpoint}
        wanted = [f"s3://{s3.bucket}/pages/{n:05d}.tar" for n in range(count)]
        assert expand_urls(f"s3://{s3.bucket}/pages/*.tar", storage_options=options) == wanted
        requests = sum(proxy.requests.values())
        assert requests <= 4  # pages of 1,000, or of as many as the server likes
        assert expand_urls(f"s3://{s3.bucket}/pages/", storage_options=options) == wanted
        client.put_object(Bucket=s3.bucket, Key="pages/99999.tar", Body=b"")
        assert len(expand_urls(f"s3://{s3.bucket}/pages/*.tar", storage_options=options)) == count + 1  # not cached
        before = sum(proxy.requests.values())
        config = wdspack.DataConfig(
            sources=source(s3, [f"s3://{s3.bucket}/pages/*.tar"], proxy.endpoint),
            tokenizer=tokenizer_path, layout=LAYOUT, lanes=2, epochs=1, on_error="skip",
        )  # fmt: skip
        loader = wdspack.make_loader(config, num_workers=2)
        assert sum(proxy.requests.values()) - before <= 4
        del loader


def test_a_manifest_is_read_once(s3, shards, tokenizer_path):
    urls = bucketed(s3, shards(counts=[5, 5]).urls, "manifest")
    names = "\n".join(url.rpartition("/")[2] for url in urls)
    s3.client().put_object(Bucket=s3.bucket, Key="manifest/shards.txt", Body=names.encode())
    with FaultProxy(s3.endpoint) as proxy:
        config = wdspack.DataConfig(
            sources=source(s3, [f"s3://{s3.bucket}/manifest/shards.txt"], proxy.endpoint),
            tokenizer=tokenizer_path, layout=LAYOUT, lanes=2, epochs=1, buffer_size=4, seq_len=256,
        )  # fmt: skip
        loader = wdspack.make_loader(config, batch_size=None, num_workers=2)
        assert sum(len(pack["keys"]) for pack in loader) == 10
        assert proxy.count("GET", "shards.txt") == 1


def test_environment_and_anonymous_access(s3, monkeypatch, tmp_path):
    """What AWS' own tools look at is looked at; nothing has to be in the config."""
    (tmp_path / "x.bin").write_bytes(b"hello")
    (url,) = bucketed(s3, [str(tmp_path / "x.bin")], "environment")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def fresh() -> None:
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()

    with contextlib.suppress(AttributeError):
        fresh()
    with pytest.raises(wdspack.ShardError, match="check the key and secret") as raised:
        read_file(url, storage_options={"endpoint_url": s3.endpoint})
    assert raised.value.reason == "denied"
    with pytest.raises(wdspack.ShardError) as raised:  # this bucket is not public
        read_file(url, storage_options={"endpoint_url": s3.endpoint, "anon": True})
    assert raised.value.reason == "denied"
    (tmp_path / "credentials").write_text(
        f"[lab]\naws_access_key_id={s3.key}\naws_secret_access_key={s3.secret}\n[default]\naws_access_key_id=no\n"
        "aws_secret_access_key=nono\n"
    )
    fresh()
    assert read_file(url, storage_options={"endpoint_url": s3.endpoint, "profile": "lab"}) == b"hello"
    fresh()
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert read_file(url, storage_options={"endpoint_url": s3.endpoint}) == b"hello"
    monkeypatch.delenv("AWS_PROFILE")
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    fresh()
    assert read_file(url) == b"hello"
    fresh()


def test_requester_pays_is_sent(s3, tmp_path):
    (tmp_path / "x.bin").write_bytes(b"hello")
    (url,) = bucketed(s3, [str(tmp_path / "x.bin")], "pays")
    seen = []
    with FaultProxy(s3.endpoint) as proxy:
        from wdspack.storage.clients import filesystem

        options = {**s3.storage_options, "endpoint_url": proxy.endpoint, "requester_pays": True}
        fs, _ = filesystem(url, options)
        fs.connect()
        fs._s3.meta.events.register("before-send.s3.GetObject", lambda request, **_: seen.append(request.headers))
        assert read_file(url, storage_options=options) == b"hello"
    assert [dict(headers).get("x-amz-request-payer") for headers in seen] == [b"requester"]


def test_paths_are_those_of_the_bucket(s3):
    """Keys with blanks, plus signs and percent signs are taken literally."""
    client = s3.client()
    for n, name in enumerate(("a b.tar", "a+b.tar", "a%20b.tar", "ä=1/b.tar")):
        client.put_object(Bucket=s3.bucket, Key=f"names/{name}", Body=bytes([n]))
        assert read_file(f"s3://{s3.bucket}/names/{name}", storage_options=s3.storage_options) == bytes([n])


def test_a_worker_that_is_killed_leaves_no_process(s3, shards, tokenizer_path):
    urls = bucketed(s3, shards(counts=[30, 30]).urls, "orphans")
    config = wdspack.DataConfig(
        sources=source(s3, urls), tokenizer=tokenizer_path, layout=LAYOUT, lanes=2, seq_len=256, buffer_size=8
    )
    before = set(psutil.Process().children())
    loader = wdspack.make_loader(config, num_workers=2)
    next(loader)
    workers = set(psutil.Process().children()) - before
    assert len(workers) >= 2
    os.kill(loader._stream._items._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(zip(range(10_000), loader, strict=False))
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
