"""What language models and their decoders are given: grammar, schema, card.

| module | does |
|---|---|
| `grammar_tree`, `grammar` | the grammar that parses, exported to constrained decoders |
| `strict_schema`, `strict_json` | the JSON form of tool calls: its schema, to graph and back |
| `card_shapes`, `card_content`, `language_card` | the language on one page |
| `repair_loop` | check, mend, repeat: with fixes alone, or with any model |
| `mcp_server`, `mcp_models` | the tools and pages of the MCP server, and what they give back |
| `mcp_pool`, `mcp_worker`, `mcp_work` | worker processes under limits, and what they do |

The first three are generated from `frontend/grammar.lark` and the block library.
"""

from fusedsl.agents.grammar import ENGINES, LAYOUTS, export_grammar
from fusedsl.agents.language_card import card
from fusedsl.agents.strict_json import from_strict_json, to_strict_json
from fusedsl.agents.strict_schema import strict_schema

__all__ = [
    "ENGINES",
    "LAYOUTS",
    "card",
    "export_grammar",
    "from_strict_json",
    "strict_schema",
    "to_strict_json",
]
