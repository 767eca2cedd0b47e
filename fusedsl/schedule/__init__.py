"""Tile configurations: legality and the deterministic default."""

from fusedsl.schedule.config import TileConfig

__all__ = ["TileConfig"]
