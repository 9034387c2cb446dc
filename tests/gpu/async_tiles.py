"""Kernels around ``rtcompile/async_copy.cuh``, for elements of 1 to 16 bytes at every alignment."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import rtcompile

if TYPE_CHECKING:
    from tests.gpu.random_cases import Draw

SOURCE = Path(__file__).with_name("async_tiles.cu").read_text()


class Tile(NamedTuple):
    rows: int
    columns: int
    alignment: int
    element: str
    itemsize: int

    @property
    def expression(self) -> str:
        return f"tile_of<{self.rows}, {self.columns}, {self.alignment}, {self.element}>"


TILES = (
    *(Tile(8, 16, alignment, "signed char", 1) for alignment in (1, 2, 4, 8, 16)),
    Tile(5, 12, 8, "signed char", 1),
    Tile(3, 7, 1, "signed char", 1),
    *(Tile(4, 16, alignment, "uchar3", 3) for alignment in (1, 4, 16)),
    *(Tile(8, 8, alignment, "unsigned short", 2) for alignment in (2, 4, 8, 16)),
    Tile(7, 6, 4, "unsigned short", 2),
    Tile(4, 8, 16, "ushort3", 6),
    *(Tile(4, 16, alignment, "float", 4) for alignment in (4, 8, 16)),
    Tile(3, 3, 4, "float", 4),
    *(Tile(4, 4, alignment, "double", 8) for alignment in (8, 16)),
    Tile(2, 3, 8, "double", 8),
    *(Tile(4, 4, alignment, "float3", 12) for alignment in (4, 8, 16)),
    Tile(4, 3, 16, "float4", 16),
    Tile(200, 8, 16, "unsigned short", 2),
)


@functools.cache
def load() -> rtcompile.RawModule:
    return rtcompile.RawModule(
        code=SOURCE, options=("-std=c++17",), name_expressions=[tile.expression for tile in TILES]
    )


def run(draw: Draw) -> tuple[str, int]:
    """Copy one tile, often over an edge; return its description and the number of wrong bytes."""
    tile = draw.pick(TILES)
    step = tile.alignment // math.gcd(
        tile.alignment, tile.itemsize
    )  # elements between valid starts
    rows, columns = (int(extent) for extent in draw.rng.integers(1, 60, 2))
    pitch = (-(-columns // step) + draw.pick((0, 1, 3))) * step
    row = int(draw.rng.integers(-tile.rows - 2, rows + 2))
    column = step * int(draw.rng.integers(-tile.columns // step - 1, columns // step + 2))
    data = draw.rng.integers(0, 256, (rows, columns * tile.itemsize), np.uint8)
    matrix = draw.memory.place(
        "the matrix",
        data,
        pitch=pitch * tile.itemsize,
        start=step * tile.itemsize * int(draw.rng.integers(5)),
    )
    expected = np.zeros((tile.rows, tile.columns, tile.itemsize), np.uint8)
    elements = data.reshape(rows, columns, tile.itemsize)
    for r in range(max(0, row), min(rows, row + tile.rows)):
        for c in range(max(0, column), min(columns, column + tile.columns)):
            expected[r - row, c - column] = elements[r, c]
    out = draw.memory.room("the tile", expected)
    arguments = map(np.int32, (row, column, rows, columns, pitch))
    load().get_function(tile.expression)((1,), (64,), (matrix, out, *arguments))
    what = f"{tile.expression} at ({row}, {column}) of {rows}x{columns}, pitch {pitch}"
    return what, int((out.get() != expected).sum())
