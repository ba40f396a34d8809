"""Areas for a Venn diagram: circles whose sizes are the sets' and whose overlaps come close to theirs.

Each set is a circle of its size. A set that is exactly where others overlap (as the high-performance class of the Venn
paper is compute-rich and memory-rich) is not drawn but named there, and equal sets are one circle. Positions minimise
the error of the pairwise overlaps, from several starts, and how far the areas of the regions are off in the end is
measured on a grid: `Layout.error`. With more than a few sets no such picture is true, and `lay_out` says so.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

MAX_CIRCLES = 5
_GRID = 240
_STARTS = 12
_STEPS = 400
_EXACT = 0.005
"""With this error nobody sees one."""

Regions = Mapping[int, float]
"""Size of each region by its signature: bit *b* is set where the region lies in set *b*."""


@dataclasses.dataclass(frozen=True, slots=True)
class Circle:
    """A circle, and the sets that it stands for."""

    x: float
    y: float
    radius: float
    sets: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where circles and regions are, in units in which areas are sizes.

    Attributes:
        circles: largest first.
        derived: set → the sets whose common part it is.
        centres: a point well inside each region that is large enough to be seen.
        error: sum of the regions' errors in area, over the total.
    """

    circles: list[Circle]
    derived: dict[int, tuple[int, ...]]
    centres: dict[int, tuple[float, float]]
    error: float


def lay_out(regions: Regions, count: int) -> Layout | None:
    """The diagram of ``count`` sets, or None when circles cannot show it (too many, or nothing in it)."""
    members = [frozenset(region for region in regions if region >> bit & 1) for bit in range(count)]
    derived = _derived(members)
    drawn: dict[frozenset[int], list[int]] = {}
    for bit, member in enumerate(members):
        if bit not in derived and member:
            drawn.setdefault(member, []).append(bit)
    if not drawn or len(drawn) > MAX_CIRCLES:
        return None
    sets = sorted(drawn, key=lambda member: -_size(member, regions))
    radii = np.array([math.sqrt(_size(member, regions) / math.pi) for member in sets])
    if not np.all(radii > 0):
        return None
    wanted, kinds = _distances(sets, radii, regions)
    best: tuple[float, npt.NDArray[np.float64], dict[int, tuple[float, float]]] | None = None
    rng = np.random.default_rng(0)
    for _ in range(_STARTS if len(sets) > 1 else 1):
        places = _settle(rng.normal(size=(len(sets), 2)) * radii.max(), wanted, kinds)
        error, centres = _measure(places, radii, [drawn[member] for member in sets], derived, regions)
        if best is None or error < best[0]:
            best = error, places, centres
        if best[0] < _EXACT:
            break
    assert best is not None
    error, places, centres = best
    places, centres = _turned(places, centres)
    circles = [
        Circle(float(x), float(y), float(radius), tuple(drawn[member]))
        for (x, y), radius, member in zip(places, radii, sets, strict=True)
    ]
    return Layout(circles, derived, centres, error)


def _derived(members: list[frozenset[int]]) -> dict[int, tuple[int, ...]]:
    """Sets that are the common part of two or three others, none of which is such a set itself."""
    found: dict[int, tuple[int, ...]] = {}
    for bit, member in enumerate(members):
        others = [other for other in range(len(members)) if member < members[other] and other not in found]
        for parents in itertools.chain(itertools.combinations(others, 2), itertools.combinations(others, 3)):
            if frozenset.intersection(*(members[parent] for parent in parents)) == member and member:
                found[bit] = parents
                break
    return found


def _size(member: frozenset[int], regions: Regions) -> float:
    return sum(regions[region] for region in member)


def _distances(
    sets: list[frozenset[int]], radii: npt.NDArray[np.float64], regions: Regions
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Wanted distance of each pair of circles; kind −1: at most it (nested), 1: at least it (disjoint), 0: it."""
    count = len(sets)
    wanted = np.zeros((count, count))
    kinds = np.zeros((count, count), dtype=np.int64)
    for i, j in itertools.combinations(range(count), 2):
        overlap = _size(sets[i] & sets[j], regions)
        if sets[j] <= sets[i]:
            distance, kind = 0.94 * (radii[i] - radii[j]), -1
        elif overlap <= 0:
            distance, kind = 1.06 * (radii[i] + radii[j]), 1
        else:
            distance, kind = _lens_distance(radii[i], radii[j], overlap), 0
        wanted[i, j] = wanted[j, i] = distance
        kinds[i, j] = kinds[j, i] = kind
    return wanted, kinds


def _lens_distance(r: float, s: float, area: float) -> float:
    """How far apart two circles are whose common part has this area, by bisection."""
    low, high = abs(r - s), r + s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _lens_area(r, s, middle) > area else (low, middle)
    return (low + high) / 2


def _lens_area(r: float, s: float, d: float) -> float:
    if d >= r + s:
        return 0.0
    if d <= abs(r - s):
        return math.pi * min(r, s) ** 2
    a = (d * d + r * r - s * s) / (2 * d)
    b = d - a
    return (
        r * r * math.acos(max(-1.0, min(1.0, a / r))) - a * math.sqrt(max(r * r - a * a, 0.0))
        + s * s * math.acos(max(-1.0, min(1.0, b / s))) - b * math.sqrt(max(s * s - b * b, 0.0))
    )  # fmt: skip


def _settle(
    places: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64], kinds: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Move circles down the gradient of the squared errors of their distances; exact overlaps weigh more."""
    weight = np.where(kinds == 0, 1.0, 0.6)
    for step in range(_STEPS):
        between = places[:, None, :] - places[None, :, :]
        distance = np.sqrt((between**2).sum(axis=2)) + 1e-12
        off = distance - wanted
        off = np.where(kinds == -1, np.maximum(off, 0.0), np.where(kinds == 1, np.minimum(off, 0.0), off))
        np.fill_diagonal(off, 0.0)
        pull = (weight * off / distance)[:, :, None] * between
        places = places - (0.4 / len(places)) * (1.0 - 0.5 * step / _STEPS) * 2 * pull.sum(axis=1)
    settled: npt.NDArray[np.float64] = places
    return settled


def _measure(
    places: npt.NDArray[np.float64],
    radii: npt.NDArray[np.float64],
    sets: list[list[int]],
    derived: Mapping[int, tuple[int, ...]],
    regions: Regions,
) -> tuple[float, dict[int, tuple[float, float]]]:
    """Error of the regions' areas, and a point well inside each."""
    low = (places - radii[:, None]).min(axis=0)
    high = (places + radii[:, None]).max(axis=0)
    cell = float((high - low).max()) / _GRID
    size = np.ceil((high - low) / cell).astype(int) + 2
    x = low[0] + cell * (np.arange(size[0]) - 0.5)
    y = low[1] + cell * (np.arange(size[1]) - 0.5)
    signature = np.zeros((size[1], size[0]), dtype=np.int64)
    for (cx, cy), radius, bits in zip(places, radii, sets, strict=True):
        inside = (x[None, :] - cx) ** 2 + (y[:, None] - cy) ** 2 <= radius**2
        signature |= np.where(inside, sum(1 << bit for bit in bits), 0)
    for bit, parents in derived.items():
        both = sum(1 << parent for parent in parents)
        signature |= np.where(signature & both == both, 1 << bit, 0)
    total = sum(size for region, size in regions.items() if region)
    found = {int(value): int(cells) for value, cells in zip(*np.unique(signature, return_counts=True), strict=True)}
    off = sum(abs(found.get(region, 0) * cell**2 - regions.get(region, 0.0)) for region in {*found, *regions} if region)
    centres = {}
    for region in found:
        if region and regions.get(region):
            row, column = _deepest(signature == region)
            centres[region] = float(x[column]), float(y[row])
    return off / total, centres


def _turned(
    places: npt.NDArray[np.float64], centres: dict[int, tuple[float, float]]
) -> tuple[npt.NDArray[np.float64], dict[int, tuple[float, float]]]:
    """All turned so that the two smallest circles lie side by side, the larger of them to the left."""
    if len(places) < 2:
        return places, centres
    dx, dy = places[-1] - places[-2]
    length = math.hypot(dx, dy)
    if not length:
        return places, centres
    turn = np.array([[dx, dy], [-dy, dx]]) / length
    turned: npt.NDArray[np.float64] = places @ turn.T
    return turned, {region: tuple((turn @ np.array(centre)).tolist()) for region, centre in centres.items()}


def _deepest(inside: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """A cell of a shape that is farthest from its edge: what is left when it is peeled away."""
    left = inside
    while True:
        padded = np.pad(left, 1)
        peeled = left & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        if not peeled.any():
            rows, columns = np.nonzero(left)
            nearest = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
            return int(rows[nearest]), int(columns[nearest])
        left = peeled
