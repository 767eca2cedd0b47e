"""The strict JSON form: its schema under the published rules, lossless, and refused alike."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from examples import FOLDER
from fusedsl.agents import from_strict_json, strict_schema, to_strict_json
from fusedsl.agents.strict_schema import node_keys
from fusedsl.blocks import library
from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import load, parse
from fusedsl.ir import BlockLibrary, OperandSpec
from tests.agents.strict_rules import sizes, violations
from tests.frontend.programs import ALL

EXAMPLES = {file.stem: load(file) for file in sorted(FOLDER.glob("*.fdsl"))}
REFUSED = 500


def errors(value: Any) -> FusedslError:
    with pytest.raises(FusedslError) as error:
        from_strict_json(value)
    return error.value


# The schema ------------------------------------------------------------------------------------
@pytest.mark.parametrize("internal", [False, True])
def test_the_schema_obeys_the_published_rules(internal: bool):
    schema = strict_schema(internal=internal)
    assert violations(schema) == []
    assert sizes(schema)["unions"] == 1


def test_the_schema_is_kept(golden):
    listed = BlockLibrary(tuple(block for block in library().values() if block.on_card))
    schema = strict_schema(library=listed)
    golden("agents/strict_schema.json", json.dumps(schema, indent=1) + "\n")


def test_every_public_block_is_in_one_member():
    members = strict_schema()["properties"]["nodes"]["items"]["anyOf"]
    names = [name for m in members for name in m["properties"]["op"]["enum"]]
    assert sorted(names) == [b.name for b in library().public()]
    assert all(next(iter(m["properties"])) == "op" for m in members)


def _spoilt(change: Callable[[Any], None]) -> list[str]:
    schema = copy.deepcopy(strict_schema())
    change(schema)
    return violations(schema)


def _node(schema: Any) -> Any:
    return schema["properties"]["nodes"]["items"]["anyOf"][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(anyOf=[]),
        lambda s: s.update(type="array"),
        lambda s: s.pop("additionalProperties"),
        lambda s: s["required"].pop(),
        lambda s: _node(s).update(additionalProperties=True),
        lambda s: _node(s)["properties"]["op"].update(default="add"),
        lambda s: _node(s)["properties"]["op"]["enum"].append("relu"),
        lambda s: _node(s)["properties"]["op"]["enum"].append(None),
        lambda s: _node(s)["properties"]["op"]["enum"].extend(map(str, range(300))),
        lambda s: _node(s)["properties"]["op"].update(type=["string", "null"]),
        lambda s: s["properties"]["name"].update(description="sibling of a reference"),
        lambda s: s["properties"].update(x={"type": "number", "minimum": 0}),
        lambda s: s["properties"]["outputs"].update(minItems=2),
        lambda s: s["$defs"]["name"].update(pattern=r"(?=a)"),
        lambda s: s["$defs"]["param"]["properties"].update(x={"$ref": "#/$defs/param"}),
        lambda s: s["$defs"]["param"]["properties"].update(x={"oneOf": []}),
        lambda s: s["$defs"]["param"]["properties"]["shape"].update(
            items={"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
        ),
    ],
)
def test_the_checker_finds_what_breaks_a_rule(change: Callable[[Any], None]):
    assert _spoilt(change)


def test_a_block_whose_keys_collide_is_refused():
    block = copy.copy(library()["relu"])
    object.__setattr__(block, "operands", (OperandSpec("op"),))
    with pytest.raises(ValueError, match="one name"):
        node_keys(block)


# Lossless --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_there_and_back(name: str):
    graph = EXAMPLES[name]
    strict = to_strict_json(graph)
    assert from_strict_json(strict) == graph == from_strict_json(json.dumps(strict))
    assert to_strict_json(from_strict_json(strict)) == strict
    assert parse(str(from_strict_json(strict))) == graph


@pytest.mark.parametrize("name", ALL)
def test_every_form_of_the_language_there_and_back(name: str):
    """Numbers, two results, multiples of a dimension, blocks that rules make."""
    graph = parse(ALL[name])
    assert from_strict_json(json.loads(json.dumps(to_strict_json(graph)))) == graph


def test_another_library_is_read_by_its_own_schema():
    small = BlockLibrary((library()["relu"],))
    text = "kernel f(x: bf16[M, 8]) -> (y: bf16[M, 8]) { y = relu(x); }"
    strict = to_strict_json(parse(text))
    assert from_strict_json(strict, library=small) == parse(text)
    strict["nodes"][0]["op"] = "silu"
    with pytest.raises(FusedslError) as error:
        from_strict_json(strict, library=small)
    assert error.value.codes == ("F0201",)


# Mistakes --------------------------------------------------------------------------------------
BASE = to_strict_json(
    parse(
        "kernel f(x: bf16[M, 64], g: weight bf16[64]) -> (y: bf16[M, 64]) "
        "{ h = rms_norm(x, g, eps=1e-6); y = h * 0.5; }"
    )
)


def changed(path: str, value: Any) -> Any:
    out = copy.deepcopy(BASE)
    *steps, last = [int(s) if s.isdecimal() else s for s in path.split("/")[1:]]
    part: Any = out
    for step in steps:
        part = part[step]
    if value is KeyError:
        del part[last]
    else:
        part[last] = value
    return out


@pytest.mark.parametrize(
    ("path", "value", "code", "pointer"),
    [
        ("/name", 3, "F0103", "/name"),
        ("/name", KeyError, "F0103", ""),
        ("/extra", 1, "F0103", ""),
        ("/outputs", [], "F0103", "/outputs"),
        ("/params/0/dtype", "fp8", "F0103", "/params/0/dtype"),
        ("/params/0/shape/1", 64, "F0103", "/params/0/shape/1"),
        ("/params/0/shape/1", "64.0", "F0103", "/params/0/shape/1"),
        ("/params/0/weight", "no", "F0103", "/params/0/weight"),
        ("/params/0/shape", ["M", "64", "2"], "F0403", "/params/0/shape"),
        ("/nodes/0", [], "F0103", "/nodes/0"),
        ("/nodes/0/op", "rmsnorm", "F0201", "/nodes/0/op"),
        ("/nodes/0/eps", "1e-6", "F0103", "/nodes/0/eps"),
        ("/nodes/0/eps", True, "F0103", "/nodes/0/eps"),
        ("/nodes/0/offset", 2, "F0103", "/nodes/0/offset"),
        ("/nodes/0/offset", 1.0, "F0103", "/nodes/0/offset"),
        ("/nodes/0/cast", "lama", "F0103", "/nodes/0/cast"),
        ("/nodes/0/x", "", "F0103", "/nodes/0/x"),
        ("/nodes/0/x", "nowhere", "F0202", "/nodes/0/x"),
        ("/nodes/0/gain", "x", "F0402", None),
        ("/nodes/0/result", "x", "F0203", "/nodes/0/result"),
        ("/nodes/1/b", "1e", "F0103", "/nodes/1/b"),
        ("/nodes/1/b", "+.5e-3 ", "F0103", "/nodes/1/b"),
        ("/nodes/1/b", "1e999", "F0105", "/nodes/1/b"),
        ("/nodes/1/bias", "", "F0103", "/nodes/1"),
        ("/nodes/1/a", "x", "F0205", "/nodes/0/result"),
    ],
)
def test_mistakes_have_codes_and_places(path: str, value: Any, code: str, pointer: str | None):
    error = errors(changed(path, value))
    found = error.diagnostics[0]
    assert found.code == code, error
    assert found.fix and found.expected
    assert pointer is None or found.pointer == pointer, error


@pytest.mark.parametrize("text", ["", "[1]", "{", "NaN", '{"a": 1, "a": 2}', "[" * 100_000])
def test_texts_that_are_no_graph(text: str):
    assert errors(text).codes == ("F0103",)


# A decoder -------------------------------------------------------------------------------------
def decoder() -> Callable[[Any], bool]:
    llguidance = pytest.importorskip("llguidance")
    form = llguidance.LLMatcher.grammar_from_json_schema(
        strict_schema(),
        overrides={
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
        },
    )
    tokenizer = llguidance.LLTokenizer("byte")
    assert llguidance.LLMatcher.validate_grammar_with_warnings(form, tokenizer) == (False, [])
    first = llguidance.LLMatcher(tokenizer, form)

    def accepts(value: Any) -> bool:
        data = list(json.dumps(value).encode())
        matcher = first.deep_copy()
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    return accepts


def test_a_decoder_accepts_every_example():
    accepts = decoder()
    for name, graph in EXAMPLES.items():
        assert accepts(to_strict_json(graph)), name


VALUES = ["", "x", "2x", "0.5", "a b", "softcap", "bf16", 0, 1, 2.5, -1, True, None, [], {}, ["x"]]


def mutated(value: Any, rng: random.Random) -> Any:
    """The graph with one object changed: a key gone, new, of another node, or of another type."""
    value = copy.deepcopy(value)
    nodes = value["nodes"]
    part = rng.choice([value, *value["params"], *nodes, *nodes])
    key = rng.choice(list(part))
    kind = rng.randrange(5)
    if kind == 0:
        del part[key]
    elif kind == 1:
        part[rng.choice(["w", "axis", "eps", "extra", "bias"])] = rng.choice(VALUES)
    elif kind == 2:
        part[key] = rng.choice(VALUES)
    elif kind == 3:
        node = rng.choice(nodes)
        node["op"] = rng.choice(
            ["rmsnorm", "fold_scale", "", *(b.name for b in library().public())]
        )
    else:
        spot = rng.choice([value["outputs"], *(p["shape"] for p in value["params"])])
        spot[rng.randrange(len(spot))] = rng.choice(VALUES)
    return value


def test_a_decoder_refuses_what_the_reader_refuses_for_structure():
    accepts = decoder()
    rng = random.Random("structure")
    graphs = [to_strict_json(graph) for graph in EXAMPLES.values()]
    refused = 0
    while refused < REFUSED:
        value = mutated(rng.choice(graphs), rng)
        try:
            from_strict_json(value)
        except FusedslError as error:
            if not {"F0103", "F0201"} & set(error.codes):
                continue
            refused += 1
            assert not accepts(value), f"{error}\n{json.dumps(value)}"
