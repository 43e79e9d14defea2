"""`nox -l | python members.py`: whose tests have a session of their own, `test(MEMBER)`, as an
output of a workflow's step.
"""

import json
import re
import sys

print("names=" + json.dumps(re.findall(r"^[-*] test\((.+)\) ->", sys.stdin.read(), re.MULTILINE)))
