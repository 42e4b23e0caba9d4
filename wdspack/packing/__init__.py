"""Which samples share a pack: sizes in, packs out. Pure: no tensors, no files, integers for state.

size ─▶ RollingPacker.push … pop ─▶ [sample, …]     one pack at a time, from a stream
sizes ─▶ pack_all ─▶ groups ─▶ summarize            a whole list, by any strategy
"""

from wdspack.packing.budget import Budget, Totals
from wdspack.packing.offline import STRATEGIES, Spread, Summary, pack_all, summarize
from wdspack.packing.rolling import PACKING_VERSION, RollingPacker, priority

__all__ = [
    "PACKING_VERSION",
    "STRATEGIES",
    "Budget",
    "RollingPacker",
    "Spread",
    "Summary",
    "Totals",
    "pack_all",
    "priority",
    "summarize",
]
