"""Layout of names beside the points of a plot: no two overlap, and each avoids points, lines and edges.

Points that lie on each other get one name together. A name that has no room near its point is moved away and tied to
it by a leader. All lengths are in the same unit, such as points.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]  # left, lower, right and upper edge
Position = tuple[float, float]
_GAP = 1.0  # between two names
_LEADER = 6.0  # distance beyond which a name needs a leader
_COST_LINE, _COST_POINT = 10.0, 4.0


@dataclass(slots=True, frozen=True)
class Label:
    """Position of a name: its box; `side` is -1, 0 or 1 if the box is left of, over or right of its point.

    `leader`: the name is so far off that a line should tie it to its point.
    """

    box: Box
    side: int
    leader: bool


def group_points(points: Sequence[Position], kinds: Sequence[Hashable], distance: float) -> list[list[int]]:
    """Return the indices of points in groups that lie on each other and are of one kind."""
    groups: list[list[int]] = []
    for index, point in enumerate(points):
        for group in groups:
            first = group[0]
            if kinds[first] == kinds[index] and math.dist(points[first], point) < distance:
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


def join_label(names: Sequence[str], columns: int) -> str:
    """Return names as one label: `A, B`, or `A, B and 3 more` if they are too wide."""
    for count in range(len(names), 1, -1):
        more = len(names) - count
        text = ", ".join(names[:count]) + (f" and {more} more" if more else "")
        if len(text) <= columns:
            return text
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def place_labels(
    points: Sequence[Position],
    sizes: Sequence[tuple[float, float]],
    frame: Box,
    *,
    away: float,
    obstacles: Sequence[Box] = (),
    lines: Sequence[Box] = (),
) -> list[Label | None]:
    """Return a position for each name, in the given order of importance; None if there is no room for one.

    Args:
        points: Points that are named.
        sizes: Width and height of each name.
        frame: Area in which names may lie.
        away: Distance from a point to its name.
        obstacles: Boxes of marks that a name should not cover.
        lines: Boxes along lines; text across a line is hard to read.
    """
    labels: list[Label | None] = []
    boxes: list[Box] = []
    for point, size in zip(points, sizes, strict=True):
        best, lowest = None, math.inf
        for order, (box, side) in enumerate(_boxes_around(point, size, away, frame)):
            if any(overlap_of(box, other, _GAP) for other in boxes) or _outside(box, frame) > 0:
                continue
            cost = order * 0.02 * size[0] * size[1]
            cost += sum(_COST_LINE * overlap_of(box, line) for line in lines)
            cost += sum(_COST_POINT * overlap_of(box, obstacle) for obstacle in obstacles)
            if cost < lowest:
                best, lowest = Label(box, side, _distance(point, box) > max(_LEADER, 1.6 * away)), cost
            if cost == 0 or (best is not None and lowest <= (order + 1) * 0.02 * size[0] * size[1]):
                break
        labels.append(best)
        if best is not None:
            boxes.append(best.box)
    return labels


def _boxes_around(point: Position, size: tuple[float, float], away: float, frame: Box) -> Iterator[tuple[Box, int]]:
    """Yield boxes from the nearest to the furthest: beside the point, in rings around it, then all over the frame."""
    x, y = point
    wide, high = size
    for ring in range(5):
        reach = away + ring * (high + _GAP)
        for up in (reach * 0.6, -reach * 0.6 - high, *(() if ring else (-high / 2,))):
            yield (x + away, y + up, x + away + wide, y + up + high), 1
            yield (x - away - wide, y + up, x - away, y + up + high), -1
        for up in (reach, -reach - high):
            yield (x - wide / 2, y + up, x + wide / 2, y + up + high), 0
    rows = max(1, int((frame[3] - frame[1]) / (high + _GAP)))
    columns = max(1, int((frame[2] - frame[0] - wide) / 6) + 1)
    grid = [
        (frame[0] + 6.0 * column, frame[1] + row * (high + _GAP)) for row in range(rows) for column in range(columns)
    ]
    for left, lower in sorted(grid, key=lambda corner: math.dist(point, (corner[0] + wide / 2, corner[1] + high / 2))):
        side = 1 if left > x else -1 if left + wide < x else 0
        yield (left, lower, left + wide, lower + high), side


def overlap_of(first: Box, second: Box, gap: float = 0.0) -> float:
    """Return the area that two boxes share, if each is widened by half of `gap`."""
    wide = min(first[2], second[2]) - max(first[0], second[0]) + gap
    high = min(first[3], second[3]) - max(first[1], second[1]) + gap
    return max(0.0, wide) * max(0.0, high)


def _outside(box: Box, frame: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) - overlap_of(box, frame) - 1e-6


def _distance(point: Position, box: Box) -> float:
    across = max(box[0] - point[0], 0.0, point[0] - box[2])
    up = max(box[1] - point[1], 0.0, point[1] - box[3])
    return math.hypot(across, up)
