"""Draw textured triangles with numbers of objects: sun, sky, reflections and shadows on the ground, on one core.

Triangles are rasterised in homogeneous coordinates, which needs no clipping (Olano and Greer, Triangle Scan Conversion
using 2D Homogeneous Coordinates, 1997). The first pass writes the nearest triangle of every sample. The second pass
shades each triangle that a pixel sees once, as multisampling on graphics cards does.

The world has x to the right, y upwards and z ahead, in metres. Light is linear; 1 is white paper by day.
"""

import math
from typing import NamedTuple

import numpy as np

from rvtssm.system.jit import jit

NEAR_M = 0.2
GROUND, GLOWING = 1, 2  # flags of materials: it receives shadows; it shines by itself
HAZE_M = 400.0  # distance at which haze covers 63 % of a surface
HAZE = 0.55
SAMPLES = 2  # per pixel and direction
_CODES = np.arange(256) / 255
SRGB = np.where(_CODES <= 0.04045, _CODES / 12.92, ((_CODES + 0.055) / 1.055) ** 2.4).astype(np.float32)


class Packed(NamedTuple):
    """Everything that is drawn, in arrays."""

    corners: np.ndarray  # (T, 3, 3) float32, of each triangle, in metres of its mesh
    normals: np.ndarray  # (T, 3, 3) float32
    uv: np.ndarray  # (T, 3, 2) float32
    material: np.ndarray  # (T,) int32
    material_kind: np.ndarray  # (M, 2) int32: texture or -1, flags
    material_value: np.ndarray  # (M, 2) float32: grey, mirrored share of the sky at normal incidence
    texture: np.ndarray  # (N,) uint8, all levels of all textures, and of opacities
    texture_place: np.ndarray  # (K, 5) int64: start, rows, columns, levels, start of the opacity or -1
    span: np.ndarray  # (I, 3) int64: first and last triangle of an instance, its object (0: none)
    hides: np.ndarray  # (I, 2) bool: only triangles that face the camera are drawn; casts a shadow
    tint: np.ndarray  # (I,) float32, factor of the grey
    matrix: np.ndarray  # (I, 3, 4) float64, from the mesh to the world
    sphere: np.ndarray  # (I, 4) float64, centre and radius in the world


class Eye(NamedTuple):
    """A camera."""

    position: np.ndarray  # (3,) metres
    rotation: np.ndarray  # (3, 3), rows: right, up, ahead
    focal: float  # samples
    centre_x: float  # samples
    centre_y: float


class Light(NamedTuple):
    """How a scene is lit."""

    sun: np.ndarray  # (3,) direction to the sun
    sun_strength: float
    ambient: float  # light from all sides
    above: float  # light that comes from above
    shadow: float  # share of the other light that a shadow takes
    glint: float  # strength of the mirrored sun
    brightness: float  # factor of everything that does not glow
    sky: np.ndarray  # (H, W) float32, upper half of all directions; the first row is the zenith


class Buffers(NamedTuple):
    """What is known of the samples and of the triangles in view."""

    depth: np.ndarray  # (H, W) float32, 1 / metres
    nearest: np.ndarray  # (H, W) int32, number of the nearest triangle in view, or -1
    shadow: np.ndarray  # (H, W) uint8
    rows: np.ndarray  # (N, 10) float64, see `_plane`
    source: np.ndarray  # (N, 2) int32, triangle and instance


def new_buffers(height: int, width: int, max_triangles: int) -> Buffers:
    """Return buffers for frames of `height` x `width` pixels."""
    shape = height * SAMPLES, width * SAMPLES
    return Buffers(
        np.zeros(shape, np.float32),
        np.full(shape, -1, np.int32),
        np.zeros(shape, np.uint8),
        np.zeros((max_triangles, 10)),
        np.zeros((max_triangles, 2), np.int32),
    )


@jit
def find_nearest(packed: Packed, eye: Eye, buffers: Buffers, only: int) -> int:
    """Write the nearest triangle of every sample, and return the number of triangles in view.

    Args:
        packed: The scene.
        eye: The camera.
        buffers: `depth` and `nearest` are cleared, and filled with `rows` and `source`.
        only: The object to draw alone, or -1 for the whole scene.
    """
    buffers.depth[:] = 0
    buffers.nearest[:] = -1
    height, width = buffers.depth.shape
    c = np.empty((3, 3))
    count = 0
    for i in range(len(packed.span)):
        is_left_out = only >= 0 and packed.span[i, 2] != only
        if is_left_out or not _in_view(packed.sphere[i], eye):
            continue
        m = _to_camera(packed.matrix[i], eye)
        for t in range(packed.span[i, 0], packed.span[i, 1]):
            _transform(m, packed.corners[t], c)
            left, right, top, bottom = _bounds(c, eye, width, height)
            if left > right or top > bottom or not _plane(c, buffers.rows[count]):
                continue
            if packed.hides[i, 0] and buffers.rows[count, 9] < 0:
                continue
            buffers.source[count, 0], buffers.source[count, 1] = t, i
            _fill(packed, buffers, count, t, (left, right, top, bottom), eye)
            count += 1
    return count


@jit
def _in_view(sphere, eye):  # type: ignore[no-untyped-def]
    """Return whether a part of a sphere may be in the frame."""
    r, d = eye.rotation, sphere[:3] - eye.position
    x = r[0, 0] * d[0] + r[0, 1] * d[1] + r[0, 2] * d[2]
    y = r[1, 0] * d[0] + r[1, 1] * d[1] + r[1, 2] * d[2]
    z = r[2, 0] * d[0] + r[2, 1] * d[1] + r[2, 2] * d[2]
    across, up = eye.centre_x / eye.focal, eye.centre_y / eye.focal
    is_beside = abs(x) - across * z > sphere[3] * math.sqrt(1 + across * across)
    is_above = abs(y) - up * z > sphere[3] * math.sqrt(1 + up * up)
    return z > -sphere[3] and not is_beside and not is_above


@jit
def _to_camera(matrix, eye):  # type: ignore[no-untyped-def]
    """Return the matrix (3, 4) from a mesh to the camera."""
    m = np.empty((3, 4))
    for a in range(3):
        for b in range(4):
            m[a, b] = 0.0
            for k in range(3):
                shift = eye.position[k] if b == 3 else 0.0
                m[a, b] += eye.rotation[a, k] * (matrix[k, b] - shift)
    return m


@jit
def _transform(m, corners, out):  # type: ignore[no-untyped-def]
    for k in range(3):
        x, y, z = corners[k, 0], corners[k, 1], corners[k, 2]
        for a in range(3):
            out[k, a] = m[a, 0] * x + m[a, 1] * y + m[a, 2] * z + m[a, 3]


@jit
def extent(c, eye):  # type: ignore[no-untyped-def]
    """Return left, right, top and bottom, in samples, of the part of a triangle (3, 3) in front of the camera."""
    left, right, top, bottom = 1e9, -1e9, 1e9, -1e9
    for k in range(3):
        following = (k + 1) % 3
        z0, z1 = c[k, 2], c[following, 2]
        if z0 >= NEAR_M:
            x, y = eye.centre_x + eye.focal * c[k, 0] / z0, eye.centre_y - eye.focal * c[k, 1] / z0
            left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
        if (z0 < NEAR_M) != (z1 < NEAR_M):
            s = (NEAR_M - z0) / (z1 - z0)
            x = eye.centre_x + eye.focal * (c[k, 0] + s * (c[following, 0] - c[k, 0])) / NEAR_M
            y = eye.centre_y - eye.focal * (c[k, 1] + s * (c[following, 1] - c[k, 1])) / NEAR_M
            left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
    return left, right, top, bottom


@jit
def _bounds(c, eye, width, height):  # type: ignore[no-untyped-def]
    """Return the first and last column and row of samples that a triangle can cover."""
    left, right, top, bottom = extent(c, eye)
    if right < 0 or left > width or bottom < 0 or top > height or left > right:
        return 1, 0, 1, 0
    return (
        max(0, math.ceil(left - 0.5)),
        min(width - 1, math.floor(right - 0.5)),
        max(0, math.ceil(top - 0.5)),
        min(height - 1, math.floor(bottom - 0.5)),
    )


@jit
def _plane(c, row):  # type: ignore[no-untyped-def]
    """Write three rows whose products with a direction (x, y, 1) are barycentric over depth, and the determinant.

    The sum of the three products is 1 / depth.
    """
    for k in range(3):
        a, b = (k + 1) % 3, (k + 2) % 3
        row[3 * k] = c[a, 1] * c[b, 2] - c[a, 2] * c[b, 1]
        row[3 * k + 1] = c[a, 2] * c[b, 0] - c[a, 0] * c[b, 2]
        row[3 * k + 2] = c[a, 0] * c[b, 1] - c[a, 1] * c[b, 0]
    determinant = row[0] * c[0, 0] + row[1] * c[0, 1] + row[2] * c[0, 2]
    row[9] = determinant
    if abs(determinant) < 1e-9:
        return False
    for k in range(9):
        row[k] /= determinant
    return True


@jit
def _fill(packed, buffers, number, t, bounds, eye):  # type: ignore[no-untyped-def]
    """Write a triangle into the samples in which it is the nearest so far."""
    left, right, top, bottom = bounds
    r = buffers.rows[number]
    texture = packed.material_kind[packed.material[t], 0]
    has_holes = texture >= 0 and packed.texture_place[texture, 4] >= 0
    step = 1 / eye.focal
    a0, a1, a2 = r[0] * step, r[3] * step, r[6] * step
    az = a0 + a1 + a2
    for y in range(top, bottom + 1):
        dx, dy = (left + 0.5 - eye.centre_x) * step, (eye.centre_y - y - 0.5) * step
        b0 = r[0] * dx + r[1] * dy + r[2]
        b1 = r[3] * dx + r[4] * dy + r[5]
        b2 = r[6] * dx + r[7] * dy + r[8]
        first, last = 0, right - left
        if last > 6:
            first, last = _positive_part(b0, b1, b2, a0, a1, a2, last)
        b0, b1, b2 = b0 + first * a0, b1 + first * a1, b2 + first * a2
        z = b0 + b1 + b2
        for x in range(left + first, left + last + 1):
            is_seen = b0 >= 0 and b1 >= 0 and b2 >= 0 and buffers.depth[y, x] < z < 1 / NEAR_M
            if is_seen and has_holes:
                is_seen = _is_opaque(packed, texture, t, b0 / z, b1 / z, b2 / z, z)
            if is_seen:
                buffers.depth[y, x] = z
                buffers.nearest[y, x] = number
            b0 += a0
            b1 += a1
            b2 += a2
            z += az


@jit
def _positive_part(b0, b1, b2, a0, a1, a2, last):  # type: ignore[no-untyped-def]
    """Return the first and the last step in which all three values that grow by `a` are positive."""
    low, high = 0.0, float(last)
    for b, a in ((b0, a0), (b1, a1), (b2, a2)):
        if a > 0:
            low = max(low, -b / a)
        elif a < 0:
            high = min(high, -b / a)
        elif b < 0:
            high = -1.0
    return math.ceil(low), math.floor(high)


@jit
def _is_opaque(packed, texture, t, w0, w1, w2, z):  # type: ignore[no-untyped-def]
    uv, place = packed.uv[t], packed.texture_place[texture]
    u = w0 * uv[0, 0] + w1 * uv[1, 0] + w2 * uv[2, 0]
    v = w0 * uv[0, 1] + w1 * uv[1, 1] + w2 * uv[2, 1]
    start, rows, columns = place[4], place[1], place[2]
    for level in range(min(3, place[3] - 1)):
        if z * (8 << level) > 1:  # nearer than 8, 16 or 32 m
            break
        start += rows * columns
        rows, columns = rows // 2, columns // 2
    i, j = math.floor((1 - v) * rows) % rows, math.floor(u * columns) % columns
    return packed.texture[start + i * columns + j] > 100


@jit
def mark_shadows(packed: Packed, eye: Eye, sun: np.ndarray, buffers: Buffers) -> None:
    """Mark the samples of the ground that triangles, projected along `sun` (3,) onto y = 0, cover."""
    buffers.shadow[:] = 0
    height, width = buffers.depth.shape
    c, row, flat = np.empty((3, 3)), np.empty(10), np.empty(4)
    along_x, along_z = sun[0] / sun[1], sun[2] / sun[1]
    # A projection onto the ground, followed by the camera, is one matrix for all meshes.
    down = np.array([[1.0, -along_x, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, -along_z, 1.0, 0.0]])
    fallen = np.empty((3, 4))
    for i in range(len(packed.span)):
        if not packed.hides[i, 1]:
            continue
        sphere = packed.sphere[i]
        half_m = (sphere[1] + sphere[3]) / 2
        flat[0], flat[1], flat[2] = sphere[0] - along_x * half_m, 0.0, sphere[2] - along_z * half_m
        flat[3] = sphere[3] + half_m * math.hypot(along_x, along_z)
        if not _in_view(flat, eye):
            continue
        for a in range(3):
            for b in range(4):
                fallen[a, b] = 0.0
                for k in range(3):
                    fallen[a, b] += down[a, k] * packed.matrix[i, k, b]
        m = _to_camera(fallen, eye)
        for t in range(packed.span[i, 0], packed.span[i, 1]):
            _transform(m, packed.corners[t], c)
            bounds = _bounds(c, eye, width, height)
            if bounds[0] <= bounds[1] and bounds[2] <= bounds[3] and _plane(c, row):
                _darken(packed, buffers, row, bounds, eye)


@jit
def _darken(packed, buffers, r, bounds, eye):  # type: ignore[no-untyped-def]
    left, right, top, bottom = bounds
    step = 1 / eye.focal
    for y in range(top, bottom + 1):
        dy = (eye.centre_y - y - 0.5) * step
        for x in range(left, right + 1):
            number = buffers.nearest[y, x]
            if number < 0 or buffers.shadow[y, x]:
                continue
            if packed.material_kind[packed.material[buffers.source[number, 0]], 1] != GROUND:
                continue
            dx = (x + 0.5 - eye.centre_x) * step
            is_inside = r[0] * dx + r[1] * dy + r[2] >= 0 and r[3] * dx + r[4] * dy + r[5] >= 0
            if is_inside and r[6] * dx + r[7] * dy + r[8] >= 0:
                buffers.shadow[y, x] = 1


@jit
def shade(image: np.ndarray, packed: Packed, eye: Eye, light: Light, buffers: Buffers) -> None:
    """Write the light of every pixel (H, W) float32."""
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            total = 0.0
            for place in range(SAMPLES * SAMPLES):
                number = buffers.nearest[y * SAMPLES + place // SAMPLES, x * SAMPLES + place % SAMPLES]
                weight, dark, across, down = _covered(buffers.nearest, buffers.shadow, y, x, place, number)
                if weight:  # 0 if an earlier sample of this pixel saw the same triangle
                    dx = (x * SAMPLES + across / weight + 0.5 - eye.centre_x) / eye.focal
                    dy = (eye.centre_y - y * SAMPLES - down / weight - 0.5) / eye.focal
                    total += weight * _seen(packed, buffers, number, dx, dy, dark / weight, eye, light)
                if weight == SAMPLES * SAMPLES:
                    break
            image[y, x] = total / (SAMPLES * SAMPLES)


@jit
def _covered(nearest, shadow, y, x, first, number):  # type: ignore[no-untyped-def]
    """Return how many samples of a pixel see a triangle, how many are in shadow, and the sums of their places."""
    weight, dark, across, down = 0, 0, 0, 0
    for place in range(SAMPLES * SAMPLES):
        row, column = place // SAMPLES, place % SAMPLES
        if nearest[y * SAMPLES + row, x * SAMPLES + column] == number:
            if place < first:
                return 0, 0, 0, 0
            weight += 1
            dark += shadow[y * SAMPLES + row, x * SAMPLES + column]
            across += column
            down += row
    return weight, dark, across, down


@jit
def _seen(packed, buffers, number, dx, dy, dark, eye, light):  # type: ignore[no-untyped-def]
    """Return the light from a triangle, or from the sky, in direction (dx, dy, 1) of the camera."""
    r = eye.rotation
    wx = r[0, 0] * dx + r[1, 0] * dy + r[2, 0]
    wy = r[0, 1] * dx + r[1, 1] * dy + r[2, 1]
    wz = r[0, 2] * dx + r[1, 2] * dy + r[2, 2]
    length = 1 / math.sqrt(wx * wx + wy * wy + wz * wz)
    wx, wy, wz = wx * length, wy * length, wz * length
    if number < 0:
        return light.brightness * _sky(light.sky, wx, max(wy, 0.0), wz)
    rows, t, i = buffers.rows, buffers.source[number, 0], buffers.source[number, 1]
    b0 = rows[number, 0] * dx + rows[number, 1] * dy + rows[number, 2]
    b1 = rows[number, 3] * dx + rows[number, 4] * dy + rows[number, 5]
    b2 = rows[number, 6] * dx + rows[number, 7] * dy + rows[number, 8]
    depth = 1 / (b0 + b1 + b2)
    b0, b1, b2 = b0 * depth, b1 * depth, b2 * depth
    material = packed.material[t]
    grey = packed.material_value[material, 0] * packed.tint[i]
    texture = packed.material_kind[material, 0]
    if texture >= 0:
        places = _texture_place(packed.uv, rows, t, number, b0, b1, b2, depth * SAMPLES / eye.focal)
        grey *= _texture(packed.texture, packed.texture_place, texture, places)
    if packed.material_kind[material, 1] == GLOWING:
        return grey
    nx, ny, nz, facing = _normal(packed.normals, packed.matrix, t, i, (b0, b1, b2), (wx, wy, wz))
    direct = light.sun_strength * (1 - dark) * max(0.0, nx * light.sun[0] + ny * light.sun[1] + nz * light.sun[2])
    value = grey * ((light.ambient + light.above * ny) * (1 - light.shadow * dark) + direct)
    mirrored = packed.material_value[material, 1]
    if mirrored > 0:
        grazing = (1 + facing) * (1 + facing)
        fresnel = mirrored + (1 - mirrored) * grazing * grazing * (1 + facing)  # Schlick, 1994
        mx, my, mz = wx - 2 * facing * nx, wy - 2 * facing * ny, wz - 2 * facing * nz
        value += fresnel * 0.8 * _sky(light.sky, mx, my, mz)
        glint = mx * light.sun[0] + my * light.sun[1] + mz * light.sun[2]
        if light.glint > 0 and glint > 0.95:
            value += fresnel * light.glint * glint**200
    value += (HAZE - value) * (1 - math.exp(-depth / HAZE_M))
    return light.brightness * value


@jit
def _normal(normals, matrix, t, i, weights, view):  # type: ignore[no-untyped-def]
    """Return the normal that faces the camera, and its product with the viewing direction."""
    b0, b1, b2 = weights
    x = b0 * normals[t, 0, 0] + b1 * normals[t, 1, 0] + b2 * normals[t, 2, 0]
    y = b0 * normals[t, 0, 1] + b1 * normals[t, 1, 1] + b2 * normals[t, 2, 1]
    z = b0 * normals[t, 0, 2] + b1 * normals[t, 1, 2] + b2 * normals[t, 2, 2]
    nx = matrix[i, 0, 0] * x + matrix[i, 0, 1] * y + matrix[i, 0, 2] * z
    ny = matrix[i, 1, 0] * x + matrix[i, 1, 1] * y + matrix[i, 1, 2] * z
    nz = matrix[i, 2, 0] * x + matrix[i, 2, 1] * y + matrix[i, 2, 2] * z
    scale = 1 / math.sqrt(nx * nx + ny * ny + nz * nz + 1e-12)
    facing = (nx * view[0] + ny * view[1] + nz * view[2]) * scale
    if facing > 0:
        scale = -scale
    return nx * scale, ny * scale, nz * scale, -abs(facing)


@jit
def _texture_place(uv, rows, t, number, b0, b1, b2, pixel):  # type: ignore[no-untyped-def]
    """Return u and v, and how much each changes from a pixel to the one beside it and to the one below.

    `pixel` is the width of a pixel in metres at the distance of the triangle.
    """
    u0, u1, u2 = uv[t, 0, 0], uv[t, 1, 0], uv[t, 2, 0]
    v0, v1, v2 = uv[t, 0, 1], uv[t, 1, 1], uv[t, 2, 1]
    u, v = b0 * u0 + b1 * u1 + b2 * u2, b0 * v0 + b1 * v1 + b2 * v2
    x0, x1, x2 = rows[number, 0], rows[number, 3], rows[number, 6]
    y0, y1, y2 = rows[number, 1], rows[number, 4], rows[number, 7]
    zx, zy = x0 + x1 + x2, y0 + y1 + y2
    ux, uy = (x0 * u0 + x1 * u1 + x2 * u2 - u * zx) * pixel, (y0 * u0 + y1 * u1 + y2 * u2 - u * zy) * pixel
    vx, vy = (x0 * v0 + x1 * v1 + x2 * v2 - v * zx) * pixel, (y0 * v0 + y1 * v1 + y2 * v2 - v * zy) * pixel
    return u, v, ux, uy, vx, vy


@jit
def _texture(flat, place, texture, places):  # type: ignore[no-untyped-def]
    """Return the light of a texture, between its two levels whose cells are about as large as a pixel."""
    u, v, ux, uy, vx, vy = places
    start, rows, columns, levels = place[texture, 0], place[texture, 1], place[texture, 2], place[texture, 3]
    one = (ux * columns) ** 2 + (vx * rows) ** 2
    two = (uy * columns) ** 2 + (vy * rows) ** 2
    cells = max(0.36 * max(one, two), min(one, two), 1.0)  # squared
    finest = min(0.5 * math.log2(cells), levels - 1.0)
    level = int(finest)
    share = finest - level
    for _ in range(level):
        start += rows * columns
        rows, columns = rows // 2, columns // 2
    value = _blend(flat, start, rows, columns, u, v)
    if share > 0.02 and level + 1 < levels:
        coarser = _blend(flat, start + rows * columns, rows // 2, columns // 2, u, v)
        value += share * (coarser - value)
    return value


@jit
def _blend(flat, start, rows, columns, u, v):  # type: ignore[no-untyped-def]
    """Return the light between the four cells of a level around a point; textures repeat in powers of two."""
    x, y = u * columns - 0.5, (1 - v) * rows - 0.5
    i, j = math.floor(y), math.floor(x)
    down, across = y - i, x - j
    upper, lower = start + (i & (rows - 1)) * columns, start + ((i + 1) & (rows - 1)) * columns
    left, right = j & (columns - 1), (j + 1) & (columns - 1)
    above = SRGB[flat[upper + left]] * (1 - across) + SRGB[flat[upper + right]] * across
    below = SRGB[flat[lower + left]] * (1 - across) + SRGB[flat[lower + right]] * across
    return above * (1 - down) + below * down


@jit
def _sky(sky, x, y, z):  # type: ignore[no-untyped-def]
    """Return the light from a direction; from below the horizon comes that of a dark ground."""
    if y < 0:
        return 0.12
    rows, columns = sky.shape
    i = math.acos(min(1.0, y)) * (2 / math.pi) * (rows - 1)
    j = (math.atan2(x, z) / (2 * math.pi) + 0.5) * columns
    i0, j0 = int(i), math.floor(j)
    i1, down, across = min(i0 + 1, rows - 1), i - i0, j - j0
    left, right = j0 % columns, (j0 + 1) % columns
    above = sky[i0, left] * (1 - across) + sky[i0, right] * across
    below = sky[i1, left] * (1 - across) + sky[i1, right] * across
    return above * (1 - down) + below * down


@jit
def count_samples(packed: Packed, buffers: Buffers, num_objects: int) -> np.ndarray:
    """Return how many samples (num_objects,) see each object."""
    counts = np.zeros(num_objects, np.int64)
    height, width = buffers.nearest.shape
    for y in range(height):
        for x in range(width):
            number = buffers.nearest[y, x]
            if number >= 0:
                counts[packed.span[buffers.source[number, 1], 2]] += 1
    return counts


@jit
def covered_part(buffers: Buffers) -> tuple[int, int, int, int, int]:
    """Return how many samples see anything, and the left, top, right and bottom of them in samples."""
    height, width = buffers.nearest.shape
    count, left, top, right, bottom = 0, width, height, 0, 0
    for y in range(height):
        for x in range(width):
            if buffers.nearest[y, x] >= 0:
                count += 1
                left, top = min(left, x), min(top, y)
                right, bottom = max(right, x + 1), max(bottom, y + 1)
    return count, left, top, right, bottom


@jit
def outlines(packed: Packed, eye: Eye, num_objects: int) -> np.ndarray:
    """Return left, top, right, bottom (num_objects, 4) of every object in samples, also beyond the frame.

    Hidden parts count; parts behind the camera do not. An object behind the camera has right < left.
    """
    boxes = np.empty((num_objects, 4))
    boxes[:, :2] = 1e9
    boxes[:, 2:] = -1e9
    c = np.empty((3, 3))
    for i in range(len(packed.span)):
        number = packed.span[i, 2]
        if number == 0 or not _in_view(packed.sphere[i], eye):
            continue
        m = _to_camera(packed.matrix[i], eye)
        for t in range(packed.span[i, 0], packed.span[i, 1]):
            _transform(m, packed.corners[t], c)
            left, right, top, bottom = extent(c, eye)
            boxes[number, 0], boxes[number, 1] = min(boxes[number, 0], left), min(boxes[number, 1], top)
            boxes[number, 2], boxes[number, 3] = max(boxes[number, 2], right), max(boxes[number, 3], bottom)
    return boxes
