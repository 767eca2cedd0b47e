"""Text, JSON and Python calls to one graph.

| module | does |
|---|---|
| `text` | text to graph: `parse` |
| `json_graph` | JSON to graph and back |
| `builder` | Python calls to graph: `Kernel` |
| `load` | a file to a graph |
| `shrink` | the same program on smaller tensors |
| `assemble` | what the three share: checked assembly that goes on after a mistake |
| `problems`, `syntax_problems` | the diagnostics |
| `fixes`, `json_fixes` | repairs as edits, and which mistakes only follow from others |
| `facts` | what a repair of a text may ask |
| `name_fixes`, `call_fixes`, `type_fixes`, `syntax_fixes` | repairs of a text, by kind |
| `repair`, `json_patch` | applying them |
| `syntax`, `recover`, `grammar.lark` | text to a syntax tree, also of text with mistakes |
| `json_model`, `json_order` | the closed shape of the JSON form; the order of its nodes |
"""

from fusedsl.frontend.builder import Kernel, Value
from fusedsl.frontend.json_graph import from_json, json_schema, to_json
from fusedsl.frontend.load import load
from fusedsl.frontend.syntax import grammar
from fusedsl.frontend.text import parse

__all__ = [
    "Kernel",
    "Value",
    "from_json",
    "grammar",
    "json_schema",
    "load",
    "parse",
    "to_json",
]
