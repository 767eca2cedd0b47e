"""Random programs of norms, projections, activations, residuals and gains."""

from __future__ import annotations

from random import Random

from fusedsl.blocks import library
from fusedsl.ir import Graph, GraphBuilder, tensor
from fusedsl.rewrite.cleanup import drop_dead

WIDTHS = (8, 16)
ACTIVATIONS = ("relu", "squared_relu", "leaky_relu", "gelu", "silu", "tanh", "neg")


class Programs:
    """One random program per seed; the same seed gives the same program."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.dtype = self.random.choice(("bf16", "bf16", "fp16", "fp32"))
        self.builder = GraphBuilder(library(), name=f"random_{seed}")
        self.values = [self._tile(self.random.choice(WIDTHS)) for _ in range(2)]

    def graph(self) -> Graph:
        """The program, of 4 to 14 statements, with one to three outputs."""
        for _ in range(self.random.randint(4, 14)):
            self.values.append(self._statement())
        made = self._made()
        outputs = {
            made[-1],
            *self.random.sample(made, k=min(len(made), self.random.choice((0, 0, 1, 2)))),
        }
        self.builder.outputs = sorted(outputs)
        graph = drop_dead(self.builder.finish())
        params = tuple(p for p in graph.params if graph.readers[p.name])
        return Graph(graph.name, params, graph.nodes, graph.outputs)

    def _made(self) -> list[str]:
        names = {r.name for node in self.builder.nodes for r in node.results}
        return [v for v in self.values if v in names]

    def _statement(self) -> str:
        # later values are likelier operands, so that chains grow long
        x = self.random.choice(self.values[-3:] if self.random.random() < 0.8 else self.values)
        kinds = [
            (self._norm, 4), (self._projection, 5), (self._activation, 3), (self._gated, 1),
            (self._pair, 1), (self._join, 3), (self._vector, 2), (self._statistic, 1),
            (self._layer, 5), (self._shared, 2), (self._picked, 1),
        ]  # fmt: skip
        makers, weights = zip(*kinds, strict=True)
        return self.random.choices(makers, weights)[0](x)

    def _chance(self, p: float = 0.5) -> bool:
        return self.random.random() < p

    def _width(self, x: str) -> int:
        return self.builder.types[x].cols.factor

    def _own(self, x: str) -> str:
        return self.builder.types[x].dtype.value

    def _param(self, *shape: str | int, dtype: str, weight: float) -> str:
        name = self.builder.fresh("p")
        type = tensor(dtype, *shape)
        return self.builder.add_param(name, type, weight=self._chance(weight))

    def _tile(self, width: int) -> str:
        return self._param("M", width, dtype=self.dtype, weight=0.0)

    def _row(self, x: str) -> str:
        return self._param(self._width(x), dtype=self._own(x), weight=0.8)

    def _column(self) -> str:
        column = self._param("M", 1, dtype="fp32", weight=0.0)
        # |c| + 1, as a reciprocal root: positive by law, and never near zero
        return self.builder.call("inv_rms", self.builder.call("mul", column, column), eps=1.0)

    def _norm(self, x: str) -> str:
        gain = self._row(x) if self._chance(0.6) else None
        out = {"out_dtype": self.dtype} if self._own(x) != self.dtype else {}
        if self._chance():
            cast = self.random.choice(("llama", "gemma", "olmo2"))
            offset = int(gain is not None and self._chance(0.3))
            return self.builder.call("rms_norm", x, gain, eps=1e-3, offset=offset, cast=cast, **out)
        bias = self._row(x) if self._chance() else None
        return self.builder.call("layer_norm", x, gain, bias, eps=1e-3, **out)

    def _weight(self, x: str, n: int, layout: str) -> str:
        shape = (n, self._width(x)) if layout == "linear" else (self._width(x), n)
        return self._param(*shape, dtype=self._own(x), weight=0.9)

    def _projection(self, x: str) -> str:
        layout = self.random.choice(("linear", "linear", "matmul"))
        n = self.random.choice(WIDTHS)
        w = self._weight(x, n, layout)
        b = self._param(n, dtype=self._own(x), weight=0.9) if self._chance(0.4) else None
        return self.builder.call(layout, x, w, b)

    def _activation(self, x: str) -> str:
        return self.builder.call(self.random.choice(ACTIVATIONS), x)

    def _gated(self, x: str) -> str:
        w = self._weight(x, 2 * self.random.choice(WIDTHS), "linear")
        z = self.builder.call("linear", x, w)
        return self.builder.call(self.random.choice(("swiglu", "reglu", "geglu")), z)

    def _pair(self, x: str) -> str:
        n = self.random.choice(WIDTHS)
        sides: list[str] = []
        for _ in range(2):
            w = self._weight(x, n, "linear")
            b = self._param(n, dtype=self._own(x), weight=1.0) if self._chance(0.3) else None
            sides.append(self.builder.call("linear", x, w, b))
        return self.builder.call(self.random.choice(("swiglu", "reglu")), *sides)

    def _join(self, x: str) -> str:
        others = [v for v in self.values if self._width(v) == self._width(x)]
        block = self.random.choice(("add", "add", "sub", "mul"))
        return self._cast(self.builder.call(block, x, self.random.choice(others)))

    def _vector(self, x: str) -> str:
        block = self.random.choice(("add", "mul", "mul", "div", "sub"))
        vector = self._column() if self._chance() else self._row(x)
        if block == "div":
            vector = self._column()
        if block == "mul" and self._chance(0.2):
            vector = 0.5
        return self._cast(self.builder.call(block, x, vector))

    def _statistic(self, x: str) -> str:
        # no row_mean: that of a LayerNorm is 0 up to rounding, which says nothing
        size = self.builder.call("row_mean_square", x)
        return self._cast(self.builder.call(self.random.choice(("sub", "mul")), x, size))

    def _layer(self, x: str) -> str:
        """norm, projection, activation, perhaps a gain or bias, projection."""
        a = self._activation(self._projection(self._norm(x)))
        if self._chance(0.3):
            a = self._vector(a)
        return self._projection(a)

    def _shared(self, x: str) -> str:
        """A norm with two or three readers."""
        h = self._norm(x)
        self.values += [self._projection(h), self._projection(h)]
        return self._join(h) if self._chance() else self.values[-1]

    def _picked(self, x: str) -> str:
        """A tile times one of the many columns of its projection."""
        w = self._weight(x, 4 * self._width(x), "linear")
        z = self.builder.call("linear", x, w)
        if self._chance():
            z = self._activation(z)
        index = self.builder.add_param(self.builder.fresh("t"), tensor("i64", "M"))
        return self._cast(self.builder.call("mul", x, self.builder.call("pick", z, index)))

    def _cast(self, x: str) -> str:
        if self._own(x) == self.dtype or self._chance(0.1):
            return x
        return self.builder.call("cast", x, dtype=self.dtype)
