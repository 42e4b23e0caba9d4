"""How many processes a loader takes when it is not told.

cores of a rank = min(CPU affinity, cgroup quota) / ranks on this host (LOCAL_WORLD_SIZE, as torchrun sets it)

decoders        = those cores, 16 at most: they sleep while enough batches wait
workers         = a third of them, rounded up, 8 at most: reading, tokenizing and packing take 0.4 of decoding's time;
                  fewer where `lanes` is no multiple of that; 1 where `lanes` is not set, so that the sequence of
                  packs does not depend on the machine
"""

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cores_of_rank(environment: Mapping[str, str] = os.environ, cgroups: Path = _CGROUPS) -> float:
    """CPU cores that this rank may use, 1 at least."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if (quota := _quota(cgroups)) is not None:
        cores = min(cores, quota)
    ranks = environment.get("LOCAL_WORLD_SIZE", "")
    return max(1.0, cores / max(1, int(ranks) if ranks.isdecimal() else 1))


def default_decoders(cores: float) -> int:
    return min(16, int(cores))


def default_workers(cores: float, lanes: int | None, world_size: int) -> int:
    """The largest number up to a third of the cores by which each rank's lanes can be shared out."""
    each = (lanes or world_size) // world_size
    return max(n for n in range(1, min(8, ceil(cores / 3)) + 1) if each % n == 0)


def _quota(cgroups: Path) -> float | None:
    """Cores' worth of CPU time that a container may use, by cgroup v2 ("max 100000", "150000 100000") or v1."""
    try:
        if (v2 := cgroups / "cpu.max").exists():
            quota, period = v2.read_text().split()
        else:
            quota, period = ((cgroups / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return None if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return None
