"""Reviews per second of the real `preflight-webhook serve`, over TLS, on one core; the load comes from another."""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .load import BenchError, drive

__all__ = ["add_arguments", "realistic_review", "run"]

LEAST_BYTES = 7 * 1024
"""What the API server sends about a training pod; a smaller review would flatter the server."""
NUMBER = "#" * 8
"""Stands in the review for digits that the load generator makes different in every request, or leaves at zero."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=16, help="%(default)s")
    parser.add_argument("--seconds", type=float, default=6, help="of each run (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="the median counts (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        alike, different = Path(folder) / "alike.json", Path(folder) / "different.json"
        review = json.dumps(realistic_review(), separators=(",", ":"))  # as Go writes it
        different.write_text(review)
        alike.write_text(review.replace(NUMBER, "0" * len(NUMBER)))
        if len(review) < LEAST_BYTES:
            raise BenchError(f"the review has {len(review)} bytes, less than {LEAST_BYTES}; give its pod more.")
        cores = sorted(os.sched_getaffinity(0))
        serving, loading = (cores[0], cores[1]) if len(cores) > 1 else (cores[0], None)
        print(
            f"review of {len(review)} bytes, {args.connections} connections, server on core {serving}, load on core {loading}"
        )
        load: dict[str, Any] = {"connections": args.connections, "seconds": args.seconds, "cpu": loading}
        with serving_webhook(Path(folder), serving) as (port, pid):
            first = repeated(args.runs, "alike", lambda: drive(port, alike, **load), pid)
            second = repeated(args.runs, "all different", lambda: drive(port, different, vary=NUMBER, **load), pid)
            steady = drive(port, alike, rate=1000, **load)
            print(f"steady 1,000/s: p50 {steady['p50_ms']:.2f} ms  p99 {steady['p99_ms']:.2f} ms")
    figures = {"review_bytes": len(review), "steady_1000_p99_ms": round(steady["p99_ms"], 2)}
    result = {"webhook": {**first, **{f"different_{key}": value for key, value in second.items()}, **figures}}
    print(json.dumps(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def repeated(runs: int, what: str, once: Callable[[], dict[str, Any]], pid: int) -> dict[str, float]:
    """The median of several runs."""
    found = []
    for number in range(runs):
        before = cpu_seconds(pid)
        measured = once()
        check_answer(measured)
        # What the server itself took: the same on a machine that others use too.
        cpu_us = (cpu_seconds(pid) - before) / measured["served"] * 1e6
        found.append({**measured, "rss_mb": resident_mb(pid), "cpu_us": cpu_us})
        print(
            f"{what}, run {number + 1}: {measured['per_s']:8.0f} reviews/s  p50 {measured['p50_ms']:.2f} ms  p99 {measured['p99_ms']:.2f} ms"
            f"  {cpu_us:.0f} us of CPU each"
        )
    keys = {"reviews_per_s": "per_s", "p50_ms": "p50_ms", "p99_ms": "p99_ms", "rss_mb": "rss_mb", "cpu_us": "cpu_us"}
    return {key: round(statistics.median(one[source] for one in found), 2) for key, source in keys.items()}


@contextmanager
def serving_webhook(folder: Path, core: int) -> Iterator[tuple[int, int]]:
    """The server as it runs in a cluster, at its default log level: (admission port, process id)."""
    program = shutil.which("preflight-webhook")
    if program is None:
        raise BenchError("preflight-webhook is not on PATH; run this with `nox -s bench`.")
    make_certificate(folder)
    config = folder / "config.yaml"
    config.write_text(
        "checks: [{name: dcgm-diag, image: 'preflight-dcgm-diag:0.1.0'}, {name: nccl-allreduce, image: 'preflight-nccl-allreduce:0.1.0'}]\n"
    )
    log = folder / "log"
    command = [
        program,
        "serve",
        "--config",
        str(config),
        "--cert-dir",
        str(folder),
        "--port",
        "0",
        "--plain-port",
        "0",
        "--host",
        "127.0.0.1",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out)
        os.sched_setaffinity(process.pid, {core})
    try:
        while not (lines := log.read_text().splitlines()):
            if process.poll() is not None:
                raise BenchError(f"preflight-webhook ended with status {process.returncode} at its start.")
        yield json.loads(lines[0])["ports"][0], process.pid
    finally:
        process.terminate()
        process.wait()


def check_answer(measured: dict[str, Any]) -> None:
    """Rates of refusals are no result: the last answer must be a patch that injects, and stamps the gang's member."""
    response = json.loads(measured["answer"])["response"]
    patch = base64.b64decode(response.get("patch", "")).decode()
    if measured["failed"] or "initContainers" not in patch or "preflight-gang-config" not in patch:
        raise BenchError(f"{measured['failed']} of {measured['requests']} answers were no patch; nothing was measured.")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    line = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def make_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    certificate = (
        built.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.key").write_bytes(private)


def realistic_review() -> dict[str, Any]:
    """A gang's member as the API server sends it: environment, volumes, tolerations, managedFields.

    :data:`NUMBER` stands in its name, its gang, and its memory.
    """
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    groups = ["system:serviceaccounts", "system:authenticated"]
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            **{"kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource},
            **{"name": f"train-{NUMBER}", "namespace": "ml", "operation": "CREATE"},
            "userInfo": {"username": "system:serviceaccount:kube-system:job-controller", "uid": "a", "groups": groups},
            **{"object": _pod(), "oldObject": None, "dryRun": False, "options": {}},
        },
    }


def _pod() -> dict[str, Any]:
    env: list[Any] = [{"name": f"NCCL_SETTING_{i}", "value": f"value-{i}"} for i in range(20)]
    env += [{"name": "MY_POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}]
    mounts: list[Any] = [{"name": n, "mountPath": f"/mnt/{n}"} for n in ("data", "checkpoints", "scratch", "shm")]
    mounts.append(
        {
            "name": "kube-api-access-x7k2p",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
    )
    defaults = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    amounts = {"cpu": "96", "memory": f"1932{NUMBER}0", "nvidia.com/gpu": "8", "nvidia.com/mlnxnics": "8"}
    fields: dict[str, Any] = {
        f"f:{name}": {".": {}, "f:name": {}, "f:value": {}}
        for name in ("metadata", "labels", "spec", "containers", "env", "resources", "volumes")
    }
    main: dict[str, Any] = {
        "name": "trainer",
        "image": "training/llm:2026.11",
        "command": ["torchrun"],
        "args": [f"--option-{i}=value" for i in range(20)],
    }
    side: dict[str, Any] = {
        "name": "log-shipper",
        "image": "logs:3",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
    }
    volumes: list[dict[str, Any]] = [
        {"name": n, "persistentVolumeClaim": {"claimName": f"claim-{n}"}} for n in ("data", "checkpoints")
    ]
    volumes += [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
    ]
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    volumes.append({"name": "kube-api-access-x7k2p", "projected": {"sources": [token], "defaultMode": 420}})
    labels = {f"example.com/label-{i}": f"value-{i}" for i in range(10)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{NUMBER}",
            "generateName": "train-",
            "namespace": "ml",
            "labels": {"app": "train", **labels},
            "annotations": {f"example.com/note-{i}": "x" * 60 for i in range(8)},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "train",
                    "uid": "0b0c5e4e-6d9c-4f41-9df5-6a7f8f2a0d11",
                    "controller": True,
                }
            ],
            "managedFields": [
                {
                    "manager": f"manager-{i}",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
                for i in range(4)
            ],
        },
        "spec": {
            "volumes": volumes,
            "containers": [
                {
                    **main,
                    "env": env,
                    "resources": {"limits": amounts, "requests": amounts},
                    "volumeMounts": mounts,
                    **defaults,
                },
                {**side, "volumeMounts": mounts, **defaults},
            ],
            "restartPolicy": "Never",
            "tolerations": [{"key": f"key-{i}", "operator": "Exists", "effect": "NoSchedule"} for i in range(6)],
            "schedulerName": "default-scheduler",
            "schedulingGroup": {"podGroupName": f"train-{NUMBER}"},
            "serviceAccountName": "default",
            "securityContext": {},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        },
        "status": {},
    }
