"""Decisions over plain data: members, size, seal, rosters, results, the audit."""
