"""How values of rows that clusters of programs share are loaded and stored: tiles lie in shared
memory, row vectors stay in registers or come a piece ahead."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusedsl.codegen.body import Body
from fusedsl.codegen.templates import fragment
from fusedsl.codegen.values import Load, Var
from fusedsl.ir import Layout, TensorType

#: Bytes of row vectors, for each column, that stay in registers from row to row, or come ahead.
_KEPT_BYTES = 4

#: Turns by the row at hand: the one that is reduced, and the one that is stored.
_TURNS = {"next": "turn", "part": "late"}


@dataclass
class ClusterBody(Body):
    """A `Body` of values [1, BLOCK_N], or [1, PIECE], in the layout TILE.

    `stays`: a cluster takes row after row. `held`: the row at hand, "next" where it is reduced
    and "part" where it is stored. `head`: its first columns are at hand. `rings`: name of the place
    in shared memory, pointer and stride of each tile that is loaded. `kept`: of each row vector
    that stays in registers, or comes a piece ahead, its name, pointer, and name where it is ahead.
    `wide`: there are registers for one that stays in fp32; `widened` is its name.
    """

    stays: bool = False
    head: bool = False
    rings: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])
    kept: dict[str, tuple[str, str, str]] = field(default_factory=dict[str, tuple[str, str, str]])
    wide: bool = False
    widened: list[str] = field(default_factory=list[str])

    def _load_line(
        self, value: str, name: str, layout: Layout, kind: TensorType, offset: str
    ) -> str:
        assert not offset
        if layout is Layout.TILE:
            if self.head:
                return fragment("call", [name], "widen", [self._head(value).next])
            ring, pointer, _ = self.rings[value]
            turn = _TURNS[self.held] if self.stays else ""
            return fragment("load_tile_part", name, ring, pointer, turn)
        at_hand = self.stays or self.held == "part"
        if layout is Layout.ROW and not self.head and at_hand and self._is_kept(value, kind):
            kept = self.kept[value][0]
            if kept in self.widened:
                return f"{name} = {kept}"
            return fragment("call", [name], "widen_here" if self.stays else "widen", [kept])
        return super()._load_line(value, name, layout, kind, offset)

    def _head(self, value: str) -> Load:
        key = (value, "")
        if key not in self.heads:
            ahead, now = (self.namer.fresh(f"{value}_head_{s}") for s in ("ahead", "next"))
            place = self.pointer(value), self.stride(value), ""
            self.heads[key] = Load(*place, ahead, now, now, self.width)
        return self.heads[key]

    def _is_kept(self, value: str, kind: TensorType) -> bool:
        """Whether a row vector stays in registers, or comes a piece ahead."""
        if value in self.kept:
            return True
        held = sum(self.type_of(name).dtype.bytes for name in self.kept)
        if held + kind.dtype.bytes > _KEPT_BYTES:
            return False
        kept, ahead = (self.namer.fresh(f"{value}_{s}") for s in ("kept", "ahead"))
        self.kept[value] = kept, self.pointer(value), ahead
        if self.stays and kind.dtype.bytes == 2 and not self.widened and self.wide:
            self.widened.append(kept)
        return True

    def _store_tile(self, value: str, var: Var, dtype: str, lines: list[str]) -> None:
        slots = var.name, self.pointer(value), self.stride(value), dtype
        lines.append(fragment("store_tile_part", *slots))
