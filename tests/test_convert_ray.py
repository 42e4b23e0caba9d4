"""Conversion on a Ray cluster of several nodes: the same output as on this machine alone."""

import os
from pathlib import Path

import pytest
from made_up import MadeUp
from test_convert import contents

from wdspack.convert import LocalExecutor, Options, RayExecutor, convert
from wdspack.errors import ConfigError, ShardError

ray = pytest.importorskip("ray", reason="pip install 'wdspack[ray]'", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # ray's own


@pytest.fixture(scope="module")
def cluster():
    """A head and two more nodes, one CPU each."""
    from ray.cluster_utils import Cluster

    here = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", here)  # so that its workers can import the made-up dataset
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        for _ in range(2):
            nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.parametrize(
    "options", [Options(per_shard=20), Options(per_shard=20, shuffle=5, key="id")], ids=["", "all"]
)
def test_several_nodes_write_what_one_process_writes(tmp_path, cluster, options):
    reader = MadeUp((60, 90, 150), bad=13, cycle=250)
    alone = convert(reader, str(tmp_path / "alone"), options, max_rejects=1.0)
    seen = []
    executor = RayExecutor(cluster.address)
    assert executor.workers == 3
    found = convert(
        reader, str(tmp_path / "ray"), options, max_rejects=1.0, executor=executor,
        progress=lambda what, done, rows: seen.append((what, done, rows)),
    )  # fmt: skip
    assert found == alone
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert seen[-1] == ("writing", 300, 300)
    assert len(seen) > 4


def test_nodes_share_the_work_and_outlive_the_death_of_a_worker(tmp_path, cluster):
    reader = MadeUp((60, 90, 150), deadly=155, once=str(tmp_path / "died"))
    convert(reader, str(tmp_path / "ray"), Options(per_shard=20), executor=RayExecutor(cluster.address))
    assert (tmp_path / "died").exists()
    convert(MadeUp((60, 90, 150)), str(tmp_path / "alone"), Options(per_shard=20))
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")


class Broken(MadeUp):
    def read(self, part, _start, _stop):
        raise ShardError("cut", url=part.url, offset=7, reason="truncated")


def test_an_error_of_a_task_is_the_same_as_at_home(tmp_path, cluster):
    for executor in (RayExecutor(cluster.address), LocalExecutor()):
        with pytest.raises(ShardError, match=r"part-0: cut \(at byte 7\)") as error:
            convert(Broken((10,)), str(tmp_path / executor.__class__.__name__), Options(per_shard=5), executor=executor)
        assert error.value.reason == "truncated"


def test_a_cluster_that_is_not_there(monkeypatch):
    def init(**_):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConfigError, match=r"ray_address='auto': Could not find.*ray start --head"):
        RayExecutor()
