"""Whole objects, hostile ones among them, through a real API server into the running webhook and
two running gang controllers.

`vectors` are known attacks, `objects` makes any number of others from a seed, `place` is where they
go, `watch` is what must hold meanwhile.
"""
