"""Blocks of one kind, one per file; see `fusedsl.blocks`."""
