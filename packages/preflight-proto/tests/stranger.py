"""A stranger's check, as the README shows it, with a few ways to go wrong for the
tests of the kit.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from preflight_proto.check import (
    Action,
    Check,
    Finding,
    Inconclusive,
    Outcome,
    Run,
    Verdict,
    run_main,
    setting,
    whole_number,
)


@dataclass(frozen=True)
class Settings:
    least_gib: int = setting(
        "LEAST_GIB", whole_number(1), default=1, help="free space that /tmp must have"
    )


async def probe(run: Run[Settings]) -> Verdict:
    match os.environ.get("GO"):
        case "wrong":
            raise KeyError("surprise")
        case "both":
            raise ExceptionGroup(
                "at once", [OSError("cut off"), Inconclusive("PEER_FAILED", "it left.")]
            )
        case "hang":
            run.progress("hanging")
            await run.command(["sh", "-c", "sleep 60 & echo $! > $PID_FILE; wait"])
        case "flood":
            done = await run.command(["sh", "-c", "yes | head -c 3000000"], max_output=1000)
            run.progress(f"kept {len(done.stdout)} truncated {done.truncated}")
        case "daemon":
            done = await run.command(
                [
                    "sh",
                    "-c",
                    "echo before; setsid sleep 60 & echo $! > $PID_FILE; sleep 0.2; exit 3",
                ],
                timeout=30,
            )
            run.progress(
                f"said {done.stdout!r} status {done.returncode} timed out {done.timed_out}"
            )
        case "quiet daemon":
            await run.command(
                ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $! > $PID_FILE; sleep 0.2"]
            )
        case "says":
            done = await run.command(["cat", os.environ["SAID"]])
            run.progress(done.stdout)
            finding = Finding(
                "SAID", done.stdout, fatal=False, action=Action.NONE, metadata={"text": done.stdout}
            )
            return Verdict(
                Outcome.FAILED,
                "SAID",
                done.stdout,
                (finding,),
                measured=float("nan"),
                expected=float("inf"),
            )
        case "callback":
            loop, closed = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
            closed.cancel()
            loop.call_soon(
                closed.set_result, 1
            )  # as a listener does that is closed while somebody connects
            loop.call_soon(dict[str, int]().__getitem__, "lost")
            await asyncio.sleep(0.01)
        case "missing":
            await run.command(["no-such-tool"])
        case "gpus":
            run.progress(f"gpus {[g.uuid for g in await run.gpus()]}")
    done = await run.command(["df", "--output=avail", "-BG", "/tmp"], timeout=10)
    free = int(done.stdout.split()[-1].rstrip("G"))
    if free >= run.settings.least_gib:
        return Verdict(Outcome.PASSED, "OK", f"/tmp has {free} GiB free.")
    finding = Finding(
        "TMP_FULL",
        "/tmp is too small",
        fatal=False,
        action=Action.NONE,
        metadata={"free_gib": str(free)},
    )
    return Verdict(
        Outcome.FAILED,
        "TMP_FULL",
        f"/tmp has {free} GiB free, {run.settings.least_gib} are needed.",
        (finding,),
    )


CHECK = Check(
    name="tmp-space",
    condition="TmpSpace",
    component="Node",
    settings=Settings,
    probe=probe,
    timeout=20,
)


def main() -> None:
    run_main(CHECK)


if __name__ == "__main__":
    main()
