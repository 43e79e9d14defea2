"""The API server, as this pod's ServiceAccount reaches it."""

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path


def api(method, path, body=None, kind="application/json"):
    """The answer's object. Raises OSError (urllib's HTTPError is one)."""
    account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    host = (
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    )
    headers = {"Authorization": f"Bearer {(account / 'token').read_text()}", "Content-Type": kind}
    request = urllib.request.Request(
        host + path,
        method=method,
        headers=headers,
        data=json.dumps(body).encode() if body else None,
    )
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    with urllib.request.urlopen(request, context=context, timeout=5) as response:
        return json.load(response)


def found(path):
    """The object, or None where there is none."""
    try:
        return api("GET", path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
