"""The fake DCGM hostengine: one diagnostic at a time, GPU ids of its own, a version of its own.

It speaks one line of JSON a call with the fake dcgmi. In fake_node.py it is the node's; by itself
(`hostengine.py HOST PORT`) it takes one node.json a line on standard input, prints what it was
asked as JSON lines, and ends with its input. Nothing of Preflight is imported.

node.json, "engine": {"state": "ok" | "absent" | "busy" | "stopped" | "error", "version": "4.4.2",
"seconds": 0.2, "hidden": [uuid] that it does not know, "lost": [uuid] that it calls LOST, "faults":
[{"uuid" (none: nobody's), "test", "error_id", "severity", "category", "text"}], "skips": [{"uuid",
"test", "info"}], "exit": number in place of its own, "runtime": {"exit", "said"} in place of
results, "refuses": major version of a dcgmi whose diagnostic it refuses, "busy": how many
diagnostics it refuses as busy first, "serials": "own" | "foreign" (of its GPUs; a GPU whose facts
have no serial number has none), "clients": see the fake dcgmi}
"""

import asyncio
import contextlib
import json
import sys

TESTS = {1: ["software"], 2: ["software", "memory", "pcie"]}
TESTS[3] = [*TESTS[2], "diagnostic", "targeted_stress", "targeted_power"]
TESTS[4] = [*TESTS[3], "memtest", "pulse_test"]
IN_USE, ALREADY_RUNNING, KILLED, VERSION_MISMATCH, BAD_PARAMETER, TIMEOUT = (
    222,
    217,
    203,
    244,
    255,
    245,
)


class Engine:
    """``node`` has the facts; ``tell`` is called with what happens."""

    def __init__(self, node, tell, host, port):
        self.node, self.tell, self.host, self.port = node, tell, host, port
        self.running = None
        self.server = None
        self.refused = 0

    async def follow(self):
        """Listens while it is not absent, as a daemon that is there or is not."""
        self.refused = 0
        absent = self.node.engine.get("state") == "absent"
        if absent and self.server:
            self.server.close()
            self.server = None
        if not absent and not self.server:
            self.server = await asyncio.start_server(self.serve, self.host, self.port)

    def gpus(self):
        """The engine numbers GPUs in an order of its own: here, from the last."""
        engine = self.node.engine
        shown = [
            gpu
            for gpu in reversed(self.node.facts["gpus"])
            if gpu["uuid"] not in engine.get("hidden", [])
        ]
        listed = {}
        for number, gpu in enumerate(shown):
            serial = gpu.get("serial", "")
            if serial and engine.get("serials") == "foreign":
                serial = f"9{serial[1:]}"
            status = "LOST" if gpu["uuid"] in engine.get("lost", []) else ""
            listed[number] = {**gpu, "id": number, "serial": serial, "status": status}
        return listed

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, ValueError):
            request = json.loads(await reader.readline())
            answer = await self.answer(request, reader)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def answer(self, request, reader):
        version = self.node.engine.get("version", "4.4.2")
        if request["do"] == "version":
            return {"rc": 0, "version": version}
        if int(version.split(".")[0]) < int(request["client"].split(".")[0]):
            return {"rc": VERSION_MISMATCH, "said": "API version mismatch"}
        if request["do"] == "discovery":
            return {"rc": 0, "gpus": list(self.gpus().values())}
        if request["do"] == "stop":
            self.tell(stopped=bool(self.running))
            if self.running:
                self.running.cancel()
            return {"rc": 0}
        return await self.diag(request, reader)

    async def diag(self, request, reader):
        engine = self.node.engine
        state = engine.get("state", "ok")
        if engine.get("refuses") == int(request["client"].split(".")[0]):
            return {"rc": VERSION_MISMATCH, "said": "API version mismatch"}
        gpus = self.gpus()
        by_uuid = {gpu["uuid"]: number for number, gpu in gpus.items()}
        ids = [by_uuid.get(i, int(i) if i.isdigit() else None) for i in request["ids"]]
        asked = [gpus[i]["uuid"] for i in ids if i in gpus]
        self.tell(diag={"level": request["level"], "gpus": asked, "client": request["client"]})
        if state == "busy" or self.refused < engine.get("busy", 0):
            self.refused += 1
            return {"rc": IN_USE, "said": "another client is using the engine"}
        if self.running:
            return {"rc": ALREADY_RUNNING, "said": "a diagnostic is already running"}
        if None in ids or any(i not in gpus for i in ids):
            return {"rc": BAD_PARAMETER, "said": "bad parameter passed to function"}
        if state == "stopped":
            return {"rc": KILLED, "said": "the diagnostic was stopped"}
        if state == "error":
            return {"rc": 226, "said": "the nvvs child process could not be started"}
        if "runtime" in engine:
            return {
                "rc": engine["runtime"]["exit"],
                "said": engine["runtime"].get("said", "an error"),
            }
        seconds = engine.get("seconds", 0.2)
        if 0 < request.get("timeout", 0) < seconds:
            await asyncio.sleep(request["timeout"])
            return {"rc": TIMEOUT, "said": "the diagnostic took too long"}
        self.running = asyncio.create_task(asyncio.sleep(seconds))
        try:
            gone = asyncio.create_task(reader.read()) if request["heartbeat"] else None
            await asyncio.wait(
                {self.running, *([gone] if gone else [])}, return_when=asyncio.FIRST_COMPLETED
            )
            if gone and gone.done():
                return {"rc": KILLED, "said": "the client went away"}
            if self.running.cancelled():
                return {"rc": KILLED, "said": "the diagnostic was stopped"}
        finally:
            self.running = None
        return self.results(request["level"], {i: gpus[i] for i in ids})

    def results(self, level, gpus):
        faults, skips = self.node.engine.get("faults", []), self.node.engine.get("skips", [])
        results = {}
        for test in TESTS[level]:
            by_gpu = {}
            for number, gpu in gpus.items():
                mine = [
                    {**f, "gpu": number}
                    for f in faults
                    if (f["test"], f.get("uuid")) == (test, gpu["uuid"])
                ]
                skipped = [
                    s["info"] for s in skips if (s["test"], s["uuid"]) == (test, gpu["uuid"])
                ]
                by_gpu[str(number)] = {"problems": mine, "skipped": skipped[0] if skipped else ""}
            nobodys = [{**f, "gpu": -1} for f in faults if f["test"] == test and not f.get("uuid")]
            if nobodys:
                by_gpu[""] = {"problems": nobodys}
            results[test] = by_gpu
        found = [
            p for by_gpu in results.values() for each in by_gpu.values() for p in each["problems"]
        ]
        severities = {p["severity"] for p in found}
        rc = self.node.engine.get("exit", 205 if 2 in severities else 226 if severities else 0)
        serials = {str(number): gpu.get("serial", "") for number, gpu in gpus.items()}
        return {"rc": rc, "results": results, "serials": serials}


class _Alone:
    """A node of nothing but this engine."""

    def __init__(self):
        self.facts = {"gpus": []}

    @property
    def engine(self):
        return self.facts.get("engine", {})


async def main(host, port):
    def tell(**line):
        print(json.dumps(line), flush=True)

    node = _Alone()
    engine = Engine(node, tell, host, port)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        node.facts = json.loads(line)
        await engine.follow()
        tell(configured=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
