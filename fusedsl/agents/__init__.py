"""What language models and their decoders are given: grammar, schema, card.

| module | does |
|---|---|
| `grammar_tree`, `grammar` | the grammar that parses, exported to constrained decoders |
| `strict_schema`, `strict_json` | the JSON form of tool calls: its schema, to graph and back |
| `card_shapes`, `card_content`, `language_card` | the language on one page |

All of it is generated from `frontend/grammar.lark` and the block library.
"""

from fusedsl.agents.grammar import ENGINES, export_grammar

__all__ = ["ENGINES", "export_grammar"]
