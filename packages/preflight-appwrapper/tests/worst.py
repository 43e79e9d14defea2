"""AppWrappers as an API server sends them, each of 990 KB, by what is dear about them."""

from __future__ import annotations

import random
import string

SIZE = 990_000
_PIECES = {"objects": "{}", "lists": "[]", "strings": '""'}


def worst(shape: str, number: int) -> bytes:
    """``shape``: ``objects``, ``lists``, ``strings``: of nothing in a template; ``random``: text
    that nobody can make smaller; ``annotations``: as many as an API server takes.
    """
    annotations, filling = "", ""
    if shape == "annotations":
        annotations = ",".join(f'"{key:x}":""' for key in range(2**18 // 6))
    elif shape == "random":
        chance = random.Random(number)
        filling = '"' + "".join(chance.choices(string.ascii_letters + string.digits, k=SIZE)) + '"'
    else:
        piece = _PIECES[shape]
        filling = ",".join([piece] * (SIZE // (len(piece) + 1)))
    metadata = (
        f'"name":"w{number}","namespace":"ns","uid":"u{number}","resourceVersion":"{number + 1}"'
    )
    spec = '"containers":[{"name":"main","image":"x"}]'
    pod = f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{{spec},"x":[{filling}]}}}}'
    return (
        f'{{"metadata":{{{metadata},"annotations":{{{annotations}}}}},'
        f'"spec":{{"suspend":true,"components":[{{"template":{pod}}}]}}}}'
    ).encode()
