"""The grammar as a tree, and the transformations that its exports are made of.

The tree is read from the text of the `.lark` file by lark's own grammar of grammars. Names of
parse-tree nodes (`-> name`, `?rule`) have no place in it: they say nothing about the language.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from lark import Lark, Token, Tree


@dataclass(frozen=True)
class Literal:
    """A text, as it stands in a program."""

    text: str


@dataclass(frozen=True)
class Pattern:
    """A regular expression."""

    regex: str


@dataclass(frozen=True)
class Ref:
    """A rule or a terminal by name."""

    name: str


@dataclass(frozen=True)
class Repeat:
    """`item?`, `item*` or `item+`."""

    item: Item
    operator: str


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    items: tuple[Item, ...]


Item = Literal | Pattern | Ref | Repeat | Sequence | Choice


@dataclass(frozen=True)
class Grammar:
    """Rules and terminals in the order of the file; `ignored` terminals stand between any two."""

    rules: dict[str, Item]
    terminals: dict[str, Item]
    ignored: tuple[str, ...]

    def is_terminal(self, item: Item) -> bool:
        """Whether an item of a rule is one token."""
        return isinstance(item, Literal | Pattern) or (
            isinstance(item, Ref) and item.name in self.terminals
        )


def read_grammar(text: str) -> Grammar:
    """Read the text of a `.lark` file.

    Raises ValueError for what the exports cannot carry over: templates, priorities, imports,
    counted repetitions, flags of patterns.
    """
    tree = _reader().parse(text if text.endswith("\n") else text + "\n")
    rules: dict[str, Item] = {}
    terminals: dict[str, Item] = {}
    ignored: list[str] = []
    for part in tree.children:
        assert isinstance(part, Tree)
        if part.data in ("rule", "token"):
            name, parameters, *rest, body = part.children
            if _given(parameters) or any(item is not None for item in rest):
                raise ValueError(f"templates and priorities are not exported: {name}")
            found = rules if part.data == "rule" else terminals
            found[str(name).lstrip("?!")] = _item(body)
        elif part.data == "ignore":
            item = _item(part.children[0])
            if not isinstance(item, Ref):
                raise ValueError("ignored text needs a terminal of its own")
            ignored.append(item.name)
        else:
            raise ValueError(f"not exported: %{part.data}")
    return Grammar(rules, terminals, tuple(ignored))


def _given(parameters: object) -> bool:
    children = parameters.children if isinstance(parameters, Tree) else [parameters]
    return any(child is not None for child in children)


@cache
def _reader() -> Lark:
    return Lark.open_from_package(
        "lark", "lark.lark", ("grammars",), parser="lalr", maybe_placeholders=True
    )


def _item(tree: object) -> Item:
    if not isinstance(tree, Tree):
        raise ValueError(f"not exported: {tree}")
    children = tree.children
    if tree.data == "expansions":
        return choice([_item(child) for child in children])
    if tree.data == "alias":  # the name of the node goes
        return _item(children[0])
    if tree.data == "expansion":
        return sequence([_item(child) for child in children])
    if tree.data == "expr":
        atom, operator, *most = children
        if any(count is not None for count in most) or operator not in (None, "?", "*", "+"):
            raise ValueError("counted repetitions are not exported")
        return Repeat(_item(atom), str(operator)) if operator is not None else _item(atom)
    if tree.data == "name":
        return Ref(str(children[0]))
    if tree.data == "literal":
        return _literal(children[0])
    if tree.data == "maybe":
        return Repeat(_item(children[0]), "?")
    raise ValueError(f"not exported: {tree.data}")


def _literal(token: object) -> Item:
    assert isinstance(token, Token)
    text = str(token)
    if text.startswith('"') and text.endswith('"'):
        return Literal(ast.literal_eval(text))
    if text.startswith("/") and text.endswith("/"):
        return Pattern(text[1:-1].replace("\\/", "/"))
    raise ValueError(f"flags are not exported: {text}")


def sequence(items: list[Item]) -> Item:
    """One after the other, flat."""
    flat: list[Item] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Sequence) else (item,))
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(items: list[Item]) -> Item:
    """One of several, flat."""
    flat: list[Item] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Choice) else (item,))
    return flat[0] if len(flat) == 1 else Choice(tuple(flat))


def mapped(item: Item, function: Callable[[Item], Item]) -> Item:
    """The same shape with `function` of every part that has no parts."""
    if isinstance(item, Sequence):
        return sequence([mapped(part, function) for part in item.items])
    if isinstance(item, Choice):
        return choice([mapped(part, function) for part in item.items])
    if isinstance(item, Repeat):
        return Repeat(mapped(item.item, function), item.operator)
    return function(item)


# Transformations


def with_gaps(grammar: Grammar, gap: str, root: str = "start") -> Grammar:
    """Ignored text made explicit: every token is followed by the rule or terminal `gap`, optional.

    The last token of `root` is not: a program ends with itself.
    """

    def followed(item: Item) -> Item:
        return sequence([item, Repeat(Ref(gap), "?")]) if grammar.is_terminal(item) else item

    rules = {name: mapped(body, followed) for name, body in grammar.rules.items()}
    top = rules[root]
    if not isinstance(top, Sequence) or top.items[-1] != Repeat(Ref(gap), "?"):
        raise ValueError(f"'{root}' does not end in a token")
    rules[root] = sequence(list(top.items[:-1]))
    return replace(grammar, rules=rules, ignored=())


def without_left_recursion(grammar: Grammar) -> Grammar:
    """`a: b | a x` as `a: b x*`, for readers that descend. Direct left recursion only."""
    rules: dict[str, Item] = {}
    for name, body in grammar.rules.items():
        options = body.items if isinstance(body, Choice) else (body,)
        first: list[Item] = []
        rest: list[Item] = []
        for option in options:
            parts: list[Item] = list(option.items) if isinstance(option, Sequence) else [option]
            if parts[0] == Ref(name):
                rest.append(sequence(parts[1:]))
            else:
                first.append(option)
        tail: list[Item] = [Repeat(choice(rest), "*")] if rest else []
        rules[name] = sequence([choice(first), *tail])
    return replace(grammar, rules=rules)
