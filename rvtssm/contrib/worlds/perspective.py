"""Painting in three dimensions: textured panels and limbs, projected with soft edges at sub-pixel positions.

The world has x to the right, y upwards and z ahead, in metres. A `Shot` is the camera at one moment. Panels are
parallelograms with pictures from an `Atlas`. Limbs are segments with a radius at each end, shaded and textured like a
body of revolution. Objects are painted from the farthest to the nearest.
"""

import math
from typing import NamedTuple

import numpy as np

from rvtssm.system.jit import jit

PANEL_COLUMNS = 20
LIMB_COLUMNS = 12  # x, y, z, radius of both ends, grey, cloth, cells of the cloth per metre (0: plain), its phase
NO_PANELS, NO_LIMBS = np.empty((0, PANEL_COLUMNS)), np.empty((0, LIMB_COLUMNS))
NEAR_M = 0.15  # nothing nearer to the camera is painted

Box = tuple[float, float, float, float]  # left, top, right, bottom in px


class Shot(NamedTuple):
    """A camera at one moment."""

    matrix: np.ndarray  # (3, 3) float64, maps a direction in the world to (x px, y px, 1) * depth
    position: np.ndarray  # (3,) float64, metres
    focal_px: float
    light: np.ndarray  # (3,) float64, direction from which light comes: right, down, backwards


class Place(NamedTuple):
    """Where someone is on the way over the ground."""

    x_m: float  # position to the right
    z_m: float  # position ahead
    heading: float  # direction of motion in radians, from z to x
    way_m: float  # distance moved so far


class Parts(NamedTuple):
    """The parts of a body, in the order in which they are painted: panels first, then limbs."""

    panels: np.ndarray = NO_PANELS  # (K, PANEL_COLUMNS)
    limbs: np.ndarray = NO_LIMBS  # (K, LIMB_COLUMNS)


class Pictures(NamedTuple):
    """An atlas in the form that the painting loops read."""

    flat: np.ndarray  # (N,) float32, all levels of all pictures
    places: np.ndarray  # (K, 4) int64: start, log2 rows, log2 columns, levels


def panel(
    origin: tuple[float, float, float],
    across: tuple[float, float, float],
    down: tuple[float, float, float],
    texture: int,
    opacity: int = -1,
    repeats: tuple[float, float] = (1, 1),
    shift: tuple[float, float] = (0, 0),
    gain: float = 1.0,
    strength: float = 1.0,
    one_sided: bool = False,
    is_glowing: bool = False,
) -> np.ndarray:
    """Return one row of panels, (PANEL_COLUMNS,).

    Args:
        origin: Corner at which the picture begins, in metres.
        across: Vector along the rows of the picture.
        down: Vector along the columns of the picture.
        texture: Number of the picture.
        opacity: Number of a picture of the opacity, or -1 for none.
        repeats: How often the picture is repeated along `across` and `down`, whole or fractional; negative mirrors it.
        shift: Shift along `across` and `down`, in pictures.
        gain: Factor of the brightness.
        strength: Factor of the opacity.
        one_sided: Whether the panel is visible only from the side to which across x down points.
        is_glowing: Whether the panel is as bright at night as by day.
    """
    return np.array(
        (*origin, *across, *down, texture, opacity, *repeats, *shift, gain, strength, one_sided, repeats == (1, 1),
         is_glowing)
    )  # fmt: skip


@jit
def paint_panels(
    canvas: np.ndarray, panels: np.ndarray, shot: Shot, pictures: Pictures, brightness: float, is_silhouette: bool
) -> None:
    """Paint panels in order.

    Args:
        canvas: Picture (H, W) float32.
        panels: Panels (K, PANEL_COLUMNS).
        shot: The camera.
        pictures: The pictures of the panels.
        brightness: Factor of the brightness of panels that do not glow.
        is_silhouette: Paint panels white, and leave out panels with `strength` below 1, which are shadows and water.
    """
    height, width = canvas.shape
    h, inverse = np.empty((3, 3)), np.empty((3, 3))
    for k in range(len(panels)):
        q = panels[k]
        if (is_silhouette and q[16] < 1) or not _project(q, shot, h):
            continue
        left, top, right, bottom = bounds = _bounds(h)
        if right < 0 or bottom < 0 or left > width or top > height or not _invert(h, inverse):
            continue
        _paint_panel(canvas, q, inverse, bounds, pictures, brightness, is_silhouette)


@jit
def _project(q, shot, h):  # type: ignore[no-untyped-def]
    """Write the map from (s, t, 1) on a panel to (x px, y px, 1) * depth. Return whether its front side is seen."""
    matrix, position = shot.matrix, shot.position
    ox, oy, oz = q[0] - position[0], q[1] - position[1], q[2] - position[2]
    if q[17] > 0:
        nx, ny, nz = q[4] * q[8] - q[5] * q[7], q[5] * q[6] - q[3] * q[8], q[3] * q[7] - q[4] * q[6]
        if nx * ox + ny * oy + nz * oz >= 0:
            return False
    for i in range(3):
        h[i, 0] = matrix[i, 0] * q[3] + matrix[i, 1] * q[4] + matrix[i, 2] * q[5]
        h[i, 1] = matrix[i, 0] * q[6] + matrix[i, 1] * q[7] + matrix[i, 2] * q[8]
        h[i, 2] = matrix[i, 0] * ox + matrix[i, 1] * oy + matrix[i, 2] * oz
    return True


@jit
def _bounds(h):  # type: ignore[no-untyped-def]
    """Return left, top, right and bottom of a panel in pixels, of the part that is not too near."""
    left, top, right, bottom = 1e9, 1e9, -1e9, -1e9
    for corner in range(4):  # the corners around the panel, and the points where edges come too near
        following = (corner + 1) & 3
        s0, t0 = float((corner + 1) >> 1 & 1), float(corner >> 1)
        s1, t1 = float((following + 1) >> 1 & 1), float(following >> 1)
        w0, w1 = h[2, 0] * s0 + h[2, 1] * t0 + h[2, 2], h[2, 0] * s1 + h[2, 1] * t1 + h[2, 2]
        share = 0.0
        if w0 < NEAR_M:
            if w1 < NEAR_M:
                continue
            share = (NEAR_M - w0) / (w1 - w0)
        for point in range(2):
            if point == 1:
                if w0 < NEAR_M or w1 >= NEAR_M:
                    break
                share = (NEAR_M - w0) / (w1 - w0)
            s, t = s0 + share * (s1 - s0), t0 + share * (t1 - t0)
            w = h[2, 0] * s + h[2, 1] * t + h[2, 2]
            x = (h[0, 0] * s + h[0, 1] * t + h[0, 2]) / w
            y = (h[1, 0] * s + h[1, 1] * t + h[1, 2]) / w
            left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
    return left, top, right, bottom


@jit
def _invert(h, g):  # type: ignore[no-untyped-def]
    """Write the inverse of a matrix (3, 3). Return False if there is none."""
    g[0, 0], g[0, 1] = h[1, 1] * h[2, 2] - h[1, 2] * h[2, 1], h[0, 2] * h[2, 1] - h[0, 1] * h[2, 2]
    g[0, 2], g[1, 0] = h[0, 1] * h[1, 2] - h[0, 2] * h[1, 1], h[1, 2] * h[2, 0] - h[1, 0] * h[2, 2]
    g[1, 1], g[1, 2] = h[0, 0] * h[2, 2] - h[0, 2] * h[2, 0], h[0, 2] * h[1, 0] - h[0, 0] * h[1, 2]
    g[2, 0], g[2, 1] = h[1, 0] * h[2, 1] - h[1, 1] * h[2, 0], h[0, 1] * h[2, 0] - h[0, 0] * h[2, 1]
    g[2, 2] = h[0, 0] * h[1, 1] - h[0, 1] * h[1, 0]
    det = h[0, 0] * g[0, 0] + h[0, 1] * g[1, 0] + h[0, 2] * g[2, 0]
    if abs(det) < 1e-9:
        return False
    for i in range(3):
        for j in range(3):
            g[i, j] /= det
    return True


@jit
def _paint_panel(canvas, q, g, bounds, pictures, brightness, is_silhouette):  # type: ignore[no-untyped-def]
    """Paint one panel, given the map from (x px, y px, 1) to (s, t, 1) / depth and its bounds in pixels."""
    flat, height = pictures.flat, len(canvas)
    g00, g10, g20, g01, g11, g21 = g[0, 0], g[1, 0], g[2, 0], g[0, 1], g[1, 1], g[2, 1]
    start, log_rows, log_columns, num_levels = pictures.places[int(q[9])]
    has_opacity = q[10] >= 0
    opacity_start = pictures.places[int(q[10]), 0] if has_opacity else 0
    repeat_s, repeat_t, shift_s, shift_t = q[11], q[12], q[13], q[14]
    gain, strength, is_clamped = q[15] if q[19] > 0 else q[15] * brightness, q[16], q[18] > 0
    level, at, rows, columns, step_s, step_t = 0, 0, 1, 1, 1.0, 1.0
    for row in range(max(0, int(bounds[1]) - 1), min(height, int(bounds[3]) + 2)):
        y = row + 0.5
        a0, b0, c0 = g01 * y + g[0, 2], g11 * y + g[1, 2], g21 * y + g[2, 2]
        first_column, last_column = _span(g, a0, b0, c0, bounds, canvas.shape[1])
        for column in range(first_column, last_column + 1):
            x = column + 0.5
            c = g20 * x + c0
            if c <= 0.0:
                continue
            w = 1 / c
            s = (g00 * x + a0) * w
            t = (g10 * x + b0) * w
            if (column - first_column) % 4 == 0:  # scales change slowly along a row
                sx, sy = abs(g00 - s * g20) * w, abs(g01 - s * g21) * w
                tx, ty = abs(g10 - t * g20) * w, abs(g11 - t * g21) * w
                step_s = max(sx, sy) + 0.4 * min(sx, sy)
                step_t = max(tx, ty) + 0.4 * min(tx, ty)
                cells_s = step_s * abs(repeat_s) * (1 << log_columns)
                cells_t = step_t * abs(repeat_t) * (1 << log_rows)
                cells = max(min(cells_s, cells_t), 0.5 * max(cells_s, cells_t))
                level, at = _level(cells, log_rows + log_columns, num_levels)
                rows, columns = 1 << (log_rows - level), 1 << (log_columns - level)
            cover = _cover(s, t, step_s, step_t)
            if cover <= 0:
                continue
            u, v = (s * repeat_s + shift_s) * columns - 0.5, (t * repeat_t + shift_t) * rows - 0.5
            i, j = math.floor(u), math.floor(v)
            around = _around(i, j, rows, columns, is_clamped)
            if has_opacity:
                cover *= _blend(flat, opacity_start + at, around, u - i, v - j)
            cover = min(cover, 1.0) * strength  # the opacity of a glow can exceed 1, which means fully opaque
            if is_silhouette:
                canvas[row, column] += cover * (1 - canvas[row, column])
            elif cover > 0:
                light = _blend(flat, start + at, around, u - i, v - j)
                canvas[row, column] += cover * (gain * light - canvas[row, column])


@jit
def _span(g, a0, b0, c0, bounds, width):  # type: ignore[no-untyped-def]
    """Return the first and the last column of a row with 0 <= s, t <= 1 and the depth in range.

    Each condition is linear in x.
    """
    first, last = max(0.0, bounds[0] - 1), min(width - 1.0, bounds[2] + 1)
    in_s = (g[0, 0], a0), (g[2, 0] - g[0, 0], c0 - a0)
    in_t = (g[1, 0], b0), (g[2, 0] - g[1, 0], c0 - b0)
    for slope, base in (*in_s, *in_t, (-g[2, 0], 1 / NEAR_M - c0)):
        if slope > 1e-12:
            first = max(first, -base / slope - 1.5)
        elif slope < -1e-12:
            last = min(last, -base / slope + 0.5)
    return math.ceil(first), int(last)


@jit
def _cover(s, t, step_s, step_t):  # type: ignore[no-untyped-def]
    """Return how much of a pixel a panel covers; a pixel is `step_s` x `step_t` large on the panel."""
    edge_s, edge_t = min(s, 1 - s) + 0.5 * step_s, min(t, 1 - t) + 0.5 * step_t
    if edge_s <= 0 or edge_t <= 0:
        return 0.0
    cover = 1.0
    if edge_s < step_s:
        cover = edge_s / step_s
    if edge_t < step_t:
        cover *= edge_t / step_t
    return cover


@jit
def _around(i, j, rows, columns, is_clamped):  # type: ignore[no-untyped-def]
    """Return the places of the four cells of a picture around a point; pictures end, or repeat in powers of two."""
    if is_clamped:
        i0, i1 = min(max(i, 0), columns - 1), min(max(i + 1, 0), columns - 1)
        j0, j1 = min(max(j, 0), rows - 1), min(max(j + 1, 0), rows - 1)
    else:
        i0, i1, j0, j1 = i & (columns - 1), (i + 1) & (columns - 1), j & (rows - 1), (j + 1) & (rows - 1)
    return j0 * columns + i0, j0 * columns + i1, j1 * columns + i0, j1 * columns + i1


@jit
def _projected_limbs(limbs, shot):  # type: ignore[no-untyped-def]
    """Return (K, 7): x, y and radius of both ends in pixels, and the mean depth, negative if an end is too near."""
    matrix, position, num = shot.matrix, shot.position, len(limbs)
    seen = np.empty((num, 7))
    for k in range(num):
        q = limbs[k]
        depth = 0.0
        for end in range(2):
            dx, dy, dz = q[4 * end] - position[0], q[4 * end + 1] - position[1], q[4 * end + 2] - position[2]
            w = matrix[2, 0] * dx + matrix[2, 1] * dy + matrix[2, 2] * dz
            if w < NEAR_M:
                depth = -1e9
                w = NEAR_M
            seen[k, 3 * end] = (matrix[0, 0] * dx + matrix[0, 1] * dy + matrix[0, 2] * dz) / w
            seen[k, 3 * end + 1] = (matrix[1, 0] * dx + matrix[1, 1] * dy + matrix[1, 2] * dz) / w
            seen[k, 3 * end + 2] = q[4 * end + 3] * shot.focal_px / w
            depth += w / 2
        seen[k, 6] = depth
    return seen


@jit
def paint_limbs(
    canvas: np.ndarray, limbs: np.ndarray, shot: Shot, pictures: Pictures, brightness: float, is_silhouette: bool
) -> None:
    """Paint limbs from the farthest to the nearest.

    Args:
        canvas: Picture (H, W) float32.
        limbs: Limbs (K, LIMB_COLUMNS).
        shot: The camera.
        pictures: The pictures of the cloth.
        brightness: Factor of the brightness.
        is_silhouette: Paint limbs white.
    """
    light, flat = shot.light, pictures.flat
    height, width = canvas.shape
    seen = _projected_limbs(limbs, shot)
    for k in np.argsort(-seen[:, 6]):
        if seen[k, 6] < 0:
            continue
        q = limbs[k]
        x0, y0, r0, x1, y1, r1 = seen[k, 0], seen[k, 1], seen[k, 2], seen[k, 3], seen[k, 4], seen[k, 5]
        reach = max(r0, r1) + 1
        ex, ey = x1 - x0, y1 - y0
        length_2 = ex * ex + ey * ey
        length = math.sqrt(max(length_2, 1e-12))
        start, log_rows, log_columns, num_levels = pictures.places[int(q[9])]
        length_m = math.sqrt((q[4] - q[0]) ** 2 + (q[5] - q[1]) ** 2 + (q[6] - q[2]) ** 2)
        radius_m, radius_px = max(q[3], q[7]), max(r0, r1, 1e-6)
        cells = q[10] * radius_m / radius_px
        level, at = _level(cells, log_rows + log_columns, num_levels)
        rows, columns = 1 << (log_rows - level), 1 << (log_columns - level)
        scale = q[10] / (1 << level)
        for row in range(max(0, int(min(y0, y1) - reach)), min(height, int(max(y0, y1) + reach) + 1)):
            for column in range(max(0, int(min(x0, x1) - reach)), min(width, int(max(x0, x1) + reach) + 1)):
                dx, dy = column + 0.5 - x0, row + 0.5 - y0
                along = min(1.0, max(0.0, (dx * ex + dy * ey) / length_2)) if length_2 > 1e-9 else 0.0
                radius = r0 + along * (r1 - r0)
                px, py = dx - along * ex, dy - along * ey
                distance = math.sqrt(px * px + py * py)
                cover = min(1.0, max(0.0, radius - distance + 0.5))
                if cover <= 0:
                    continue
                if is_silhouette:
                    canvas[row, column] += cover * (1 - canvas[row, column])
                    continue
                nx, ny = px / max(radius, distance), py / max(radius, distance)
                nz = math.sqrt(max(0.0, 1 - nx * nx - ny * ny))
                lit = 0.55 + 0.6 * max(0.0, nx * light[0] + ny * light[1] + nz * light[2])
                side = (px * ey - py * ex) / length / radius_px * radius_m
                u, v = (side + q[11]) * scale, (along * length_m + q[11]) * scale
                i, j = math.floor(u), math.floor(v)
                a, b = u - i, v - j
                i0, i1, j0, j1 = i & (columns - 1), (i + 1) & (columns - 1), j & (rows - 1), (j + 1) & (rows - 1)
                pattern = 1.0
                if scale > 0:
                    around = (j0 * columns + i0, j0 * columns + i1, j1 * columns + i0, j1 * columns + i1)
                    pattern = _blend(flat, start + at, around, a, b)
                canvas[row, column] += cover * (q[8] * lit * pattern * brightness - canvas[row, column])


@jit
def _blend(flat, start, around, a, b):  # type: ignore[no-untyped-def]
    """Return the value at shares a across and b down between the four cells `around`, which count from `start`."""
    upper = (1 - a) * flat[start + around[0]] + a * flat[start + around[1]]
    return (1 - b) * upper + b * ((1 - a) * flat[start + around[2]] + a * flat[start + around[3]])


@jit
def _level(cells, log_cells, num_levels):  # type: ignore[no-untyped-def]
    """Return the level of a picture whose cells are about as large as pixels, and where it begins.

    `cells` is the number of cells of the finest level in one pixel.
    """
    level, at = 0, 0
    while cells > 1.4 and level < num_levels - 1:
        at += 1 << (log_cells - 2 * level)
        level += 1
        cells *= 0.5
    return level, at


@jit
def outline(points: np.ndarray, radii_m: np.ndarray, shot: Shot) -> Box:
    """Return the smallest box around balls in px, or all zeros if one of them is not in front of the camera.

    Args:
        points: Centres (K, 3) in metres.
        radii_m: Radii (K,) in metres.
        shot: The camera.
    """
    matrix, position = shot.matrix, shot.position
    left, top, right, bottom = 1e9, 1e9, -1e9, -1e9
    for k in range(len(points)):
        dx, dy, dz = points[k, 0] - position[0], points[k, 1] - position[1], points[k, 2] - position[2]
        w = matrix[2, 0] * dx + matrix[2, 1] * dy + matrix[2, 2] * dz
        if w < NEAR_M:
            return 0.0, 0.0, 0.0, 0.0
        x = (matrix[0, 0] * dx + matrix[0, 1] * dy + matrix[0, 2] * dz) / w
        y = (matrix[1, 0] * dx + matrix[1, 1] * dy + matrix[1, 2] * dz) / w
        r = radii_m[k] * shot.focal_px / w
        left, right, top, bottom = min(left, x - r), max(right, x + r), min(top, y - r), max(bottom, y + r)
    return left, top, right, bottom


def rotation(yaw: float, pitch: float, roll: float) -> np.ndarray:
    """Return the matrix (3, 3) from directions in the world to right, down and ahead of a camera.

    Args:
        yaw: Rotation of the viewing direction from z towards x, in radians.
        pitch: Upward rotation in radians.
        roll: Rotation around the viewing direction in radians.
    """
    sy, cy, sp, cp, sr, cr = (f(a) for a in (yaw, pitch, roll) for f in (math.sin, math.cos))
    turn = np.array([[cy, 0, -sy], [0, -1, 0], [sy, 0, cy]])  # right, down, ahead for a level camera
    nod = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])  # a positive pitch looks up
    tilt = np.array([[cr, sr, 0], [-sr, cr, 0], [0, 0, 1]])
    return tilt @ nod @ turn
