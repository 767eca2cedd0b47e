"""The jinja2 environment over the skeletons and fragments that live in `fusedsl.blocks`."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

from fusedsl.ir import print_value


def _lines(text: str | list[str], indent: int) -> str:
    """Join lines, every one after the first indented: the first stands where the slot stands."""
    flat = text if isinstance(text, str) else "\n".join(text)
    return flat.strip("\n").replace("\n", "\n" + " " * indent)


@cache
def environment() -> jinja2.Environment:
    """Strict: an undefined slot is an error."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("fusedsl", "blocks"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )
    env.filters["lines"] = _lines
    return env


@cache
def _module(name: str) -> Any:
    return environment().get_template(name).module


def expanded(file: str, macro: str, *args: object) -> str:
    """What a macro of a file gives."""
    return str(getattr(_module(file), macro)(*args)).strip("\n")


def fragment(macro: str, *args: object) -> str:
    """One piece of Triton from `fragments.jinja`."""
    return expanded("fragments.jinja", macro, *args)


def main_loop(macro: str, *args: object) -> str:
    """A main-loop piece from `gemm/main_loop.jinja`."""
    return expanded("gemm/main_loop.jinja", macro, *args)


def render(template: str, **slots: object) -> str:
    """Fill a skeleton."""
    return environment().get_template(template).render(**slots)


def constant(value: object) -> str:
    """A number as Triton reads it."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return print_value(value)  # type: ignore[arg-type]
