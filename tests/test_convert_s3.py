"""Conversion straight into a bucket: the shards a folder gets, whole or not at all, and gone on with after kill -9."""

import multiprocessing
import time

import pytest
from made_up import MadeUp
from test_convert import contents

from wdspack.convert import LocalExecutor, Options, convert

pytest.importorskip("wdspack.serve")

READER = MadeUp((60, 90, 150), bad=13, cycle=250)
SLOW = MadeUp((60, 90, 150), bad=13, cycle=250, pause=0.001)
PLANS = {"in order": Options(per_shard=20), "all": Options(per_shard=20, shuffle=5, key="id")}


def keys(server, prefix: str, ending: str = "") -> list[str]:
    """Names of the objects below a prefix, as a client of its own sees them."""
    found = server.client().list_objects_v2(Bucket=server.bucket, Prefix=f"{prefix}/").get("Contents", [])
    return [entry["Key"].removeprefix(f"{prefix}/") for entry in found if entry["Key"].endswith(ending)]


def objects(server, prefix: str, ending: str = "") -> dict[str, bytes]:
    client = server.client()
    return {
        key: client.get_object(Bucket=server.bucket, Key=f"{prefix}/{key}")["Body"].read()
        for key in keys(server, prefix, ending)
    }


def work(url: str, options: Options, storage_options: dict) -> None:
    convert(SLOW, url, options, storage_options=storage_options, max_rejects=1.0, memory=30_000)


@pytest.mark.parametrize("name", PLANS)
def test_a_bucket_gets_what_a_folder_gets(tmp_path, s3, name):
    alone = convert(READER, str(tmp_path), PLANS[name], max_rejects=1.0)
    prefix = f"whole-{name.replace(' ', '-')}"
    found = convert(
        READER, f"s3://{s3.bucket}/{prefix}", PLANS[name], storage_options=s3.storage_options, max_rejects=1.0,
        executor=LocalExecutor(2),
    )  # fmt: skip
    assert found == alone
    assert objects(s3, prefix) == contents(tmp_path)


def test_killed_it_goes_on_and_a_finished_shard_is_not_uploaded_again(tmp_path, s3):
    options, prefix = PLANS["all"], "killed"
    convert(READER, str(tmp_path), options, max_rejects=1.0)
    whole, url = contents(tmp_path), f"s3://{s3.bucket}/{prefix}"
    process = multiprocessing.get_context("spawn").Process(target=work, args=(url, options, s3.storage_options))
    process.start()
    while len(keys(s3, prefix, ".tar")) < 3:
        assert process.is_alive()
        time.sleep(0.02)
    process.kill()
    process.join()
    there = objects(s3, prefix, ".tar")
    assert there.items() <= whole.items(), "what is there is whole"

    def written() -> dict[str, object]:
        return {key: s3.client().head_object(Bucket=s3.bucket, Key=f"{prefix}/{key}")["LastModified"] for key in there}

    before = written()
    time.sleep(1.1)  # the time is in seconds
    convert(READER, url, options, storage_options=s3.storage_options, max_rejects=1.0)
    assert objects(s3, prefix) == whole
    assert written() == before
