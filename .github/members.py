"""`nox -l --json -s test | python members.py`: the members that the session `test` knows, as an
output of a workflow's step.
"""

import json
import sys

sessions = json.load(sys.stdin)
print("names=" + json.dumps([session["call_spec"]["member"] for session in sessions]))
