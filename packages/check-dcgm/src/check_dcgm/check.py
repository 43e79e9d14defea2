"""The check's whole way: our GPUs → which engine is ours → the diagnostic → the document → whose it
is → the verdict.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

import anyio
from preflight_proto import names
from preflight_proto.check import (
    Check,
    Completed,
    Failed,
    Gpu,
    Inconclusive,
    Outcome,
    Run,
    Skipped,
    Subject,
    Verdict,
    counters,
    gpus,
    presence,
    run_main,
    scan,
)
from preflight_proto.durations import format_duration

from . import hostengine, identity
from .candidates import Candidates, connect
from .settings import TIMEOUTS, Settings

if TYPE_CHECKING:
    from . import judge, parse

PAUSE: Final = (2.0, 5.0)
"""Seconds between two looks at a busy engine: at random, or the pods of a node stay in step."""
STILL_RUNNING: Final = 30.0
"""Seconds between two lines of a long diagnostic."""
MARGIN: Final = 120.0
"""Seconds for everything but waiting and diagnosing."""
LATER: Final = 10.0
"""Seconds that the engine has to end a diagnostic whose time is up, before dcgmi is ended."""
MAX_DOCUMENT: Final = 4 * 1024 * 1024
"""Bytes; the document of sixteen GPUs at level 4 has some hundred thousand."""
LOOKS: Final = 6
BETWEEN_LOOKS: Final = 2.0
"""How often, and seconds apart, GPUs are looked at that processes of somebody else hold: those of
the pod before may just be ending.
"""


async def probe(run: Run[Settings]) -> Verdict:
    """Diagnose the GPUs that this pod was given, and no others."""
    longest = TIMEOUTS[run.settings.level]
    allowed, patience = run.kit.check_timeout or longest, run.settings.queue_timeout
    patience = longest if patience is None else patience
    # Waiting for a neighbour is not the diagnostic's time.
    run.restart_deadline(patience + allowed + MARGIN)
    try:
        listed = await run.gpus()
    except Failed as failed:
        return await _ask_engine_too(run, failed.verdict)
    if mig := [gpu for gpu in listed if gpu.mig]:
        raise Skipped(
            "MIG", f"DCGM cannot diagnose MIG devices, and this pod was given {len(mig)}."
        )
    watch = await _free(run, listed)
    signs = scan.scan(watch.before)
    for sign in signs:
        run.progress(scan.line(sign))
    if watch.broken:
        nothing = Verdict.inconclusive("NOT_TESTED", "nothing was diagnosed.")
        return scan.with_signs(nothing, signs, scan.complete(watch.before, watch.before))
    try:
        verdict = await _diagnosed(run, listed, allowed, patience)
    except Inconclusive as error:
        verdict = Verdict.inconclusive(error.code, error.reason)
    verdict = await _with_lost(run, verdict, listed)
    await watch.poll()
    return watch.beside(verdict, computed=run.settings.level > 1)


async def _with_lost(run: Run[Settings], verdict: Verdict, listed: Sequence[Gpu]) -> Verdict:
    """``verdict`` beside the GPUs that the driver has lost since; of one that it accuses anyway
    nothing is added.
    """
    accused = {finding.subject.gpu_uuid for finding in verdict.findings if finding.fatal}
    words = await gpus.lost(listed)
    gone = {uuid: words[uuid] for uuid in words.keys() - accused}
    if not gone:
        return verdict
    missing = await _ask_engine_too(run, _gone(gone, listed))
    if verdict.outcome is not Outcome.FAILED:
        return replace(missing, findings=missing.findings + verdict.findings)
    clears = frozenset(subject for subject in verdict.clears if subject.gpu_uuid not in gone)
    reason = f"{verdict.reason} Besides: {missing.reason}"
    return replace(
        verdict, reason=reason, findings=verdict.findings + missing.findings, clears=clears
    )


def _gone(words: Mapping[str, str], listed: Sequence[Gpu]) -> Verdict:
    """The verdict about GPUs that the driver has lost since (UUID → NVML's words)."""
    devices = [
        presence.MissingDevice(
            gpu.uuid, gpu.pci_bus_id, {"NVML": words[gpu.uuid]}, "lost" in words[gpu.uuid]
        )
        for gpu in listed
        if gpu.uuid in words
    ]
    left = [gpu.uuid for gpu in listed if gpu.uuid not in words]
    return presence.verdict(devices, len(listed), left)


async def _free(run: Run[Settings], listed: Sequence[Gpu]) -> counters.DriverWatch:
    """What the driver knows of the GPUs before the load. Those that somebody else computes on are
    not loaded besides: skipped, unless the driver calls one broken anyway.
    """
    for attempt in range(LOOKS):
        watch = counters.DriverWatch(listed, await counters.snapshot(listed))
        if not watch.held or run.settings.level == 1 or watch.broken:
            return watch
        held = ", ".join(f"{uuid} ({number})" for uuid, number in watch.held.items())
        if attempt == 0:
            run.progress(f"processes of somebody else use {held}; waiting for their end")
        await anyio.sleep(BETWEEN_LOOKS)
    raise Skipped(
        "GPU_IN_USE",
        f"processes of somebody else use {held} (how many), and a diagnostic would disturb them and be disturbed; "
        "see what runs there with nvidia-smi on the node.",
    )


async def _diagnosed(
    run: Run[Settings], listed: Sequence[Gpu], allowed: float, patience: float
) -> Verdict:
    """The engine's verdict about ``listed``. Raises Inconclusive and ToolsMissing."""
    settings = run.settings
    ours = [gpu.uuid for gpu in listed]
    engine = await _candidates(run).ours(listed)
    engine, done = await _diagnose(run, engine, ours, allowed, patience)
    from . import judge, parse, summary  # loaded by now; see CHECK

    request = judge.DiagRequest(
        settings.level,
        {engine.gpus[uuid]: uuid for uuid in ours},
        engine.address,
        details={gpu.uuid: gpu for gpu in listed},
        optional=settings.optional,
        table=settings.table(),
    )
    if done.timed_out:
        return Verdict.inconclusive("CHECK_TIMEOUT", _too_long(engine, request, allowed))
    if gone := hostengine.unconnected(done.stdout):
        return judge.by_exit_status(hostengine.UNREACHABLE, request, summary.short(gone))
    document = None
    try:
        document = await anyio.to_thread.run_sync(parse.parse, done.stdout)
    except parse.UnreadableDocument as error:
        excerpt = summary.short(f"{error} {done.stderr}")
        verdict = judge.by_exit_status(done.returncode, request, excerpt)
    else:
        for line in summary.lines(document, request.gpus):
            run.progress(line)
        document = document if document.version else replace(document, version=engine.version)
        verdict = judge.judge(document, done.returncode, request)
    if verdict.code == "ENGINE_VERSION":
        asked = {engine.tool: engine.client_version}
        return replace(
            verdict, reason=hostengine.refusal(engine.address, asked, engine.engine_version)
        )
    if verdict.code == "ENGINE_TIMEOUT" and done.duration >= int(allowed):  # as it was given it
        return replace(verdict, reason=_too_long(engine, request, allowed))
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return verdict
    # Nobody is accused and nobody cleared before it is known whose GPUs these were.
    after = await connect(run.query, [engine.tool], engine.address, run.progress)
    known = {uuid: engine.gpus[uuid] for uuid in ours} | after.gpus
    unlisted = [uuid for uuid in ours if uuid not in after.gpus]
    numbers = {number: uuid for uuid, number in known.items()}
    renumbered = any(numbers.get(engine.gpus[uuid]) != uuid for uuid in ours)
    if renumbered or (unlisted and verdict.outcome is Outcome.PASSED):
        what = "renumbered its GPUs" if renumbered else f"no longer lists {', '.join(unlisted)}"
        raise Inconclusive(
            "GPU_MAP_CHANGED",
            f"hostengine {engine.address} {what} after the diagnostic; run the check again.",
        )
    await _refuse_impostor(run, replace(after, gpus=known), listed, document, unlisted)
    left = frozenset(subject for subject in verdict.clears if subject.gpu_uuid not in unlisted)
    verdict = replace(verdict, clears=left)
    return await _named(run, verdict, listed) if done.returncode in judge.GPU_FACTS else verdict


def _candidates(run: Run[Settings]) -> Candidates:
    return Candidates(run.settings.addresses, run.settings.tools, run.query, run.progress)


async def _ask_engine_too(run: Run[Settings], verdict: Verdict) -> Verdict:
    """A GPU that the driver does not list: what does the engine say of it?"""
    try:
        engine = await _candidates(run).that_knows(
            [f.subject.gpu_uuid for f in verdict.findings if f.subject.gpu_uuid]
        )
        statuses = await hostengine.inactive(run.query, engine)
    except (Inconclusive, Failed) as error:
        run.progress(f"the engine cannot be asked about it: {error}")
        return verdict
    from . import judge

    return judge.confirmed(verdict, engine.gpus, statuses)


async def _refuse_impostor(
    run: Run[Settings],
    engine: hostengine.Hostengine,
    listed: Sequence[Gpu],
    document: parse.Document | None,
    unlisted: Sequence[str],
) -> None:
    """The engine's GPUs must have the serial numbers that the driver says ours have. It knows none
    of those that are ``unlisted``: for them the others speak.
    """
    ours = {gpu.uuid: gpu.serial for gpu in listed}
    numbers = {number: uuid for uuid, number in engine.gpus.items() if uuid in ours}
    printed = document.serials if document is not None else {}
    theirs = {numbers[number]: serial for number, serial in printed.items() if number in numbers}
    foreign, unproven = identity.differences(ours, theirs)
    if unproven and not foreign:
        theirs |= await hostengine.serials(run.query, engine, unproven)
        foreign, unproven = identity.differences(ours, theirs)
    if any(serial and theirs.get(uuid) for uuid, serial in ours.items()):
        unproven = [uuid for uuid in unproven if uuid not in unlisted]
    if foreign or unproven:
        what = "other serial numbers than the driver" if foreign else "no serial number"
        raise Inconclusive(
            "WRONG_HOSTENGINE",
            f"hostengine {engine.address} gives {what} for {', '.join(foreign or unproven)}, so it is not proven to be this node's; "
            f"set {names.ENV_DCGM_HOSTENGINE} to the node's own engine by IP, as $(NODE_IP):5555.",
        )


async def _named(run: Run[Settings], verdict: Verdict, listed: Sequence[Gpu]) -> Verdict:
    """dcgmi's exit status says that one of several GPUs is lost: the driver may say which."""
    lost = await gpus.lost(listed)
    if verdict.subject or len(lost) != 1:
        return verdict
    [(uuid, words)] = lost.items()
    finding = verdict.findings[0]
    subject = Subject(presence.PRESENCE, uuid)
    updated = replace(finding, subject=subject, metadata={**finding.metadata, "nvml": words})
    return replace(
        verdict,
        subject=uuid,
        findings=(updated,),
        reason=f"{verdict.reason} NVML says of {uuid}: {words}.",
    )


def _too_long(engine: hostengine.Hostengine, request: judge.DiagRequest, allowed: float) -> str:
    from . import alarms

    left = "" if engine.heartbeat else " the engine may go on with it for a while;"
    known = alarms.hang(alarms.Circumstances(engine.version, "", request.model))
    why = f" {known.says} ({known.link});" if known else ""
    return f"hostengine {engine.address}: no result within {format_duration(allowed)};{left}{why} raise CHECK_TIMEOUT if that is too short."


async def _diagnose(
    run: Run[Settings],
    engine: hostengine.Hostengine,
    ours: Sequence[str],
    allowed: float,
    patience: float,
) -> tuple[hostengine.Hostengine, Completed]:
    """Run the diagnostic; while a neighbour's occupies the engine, wait for at most ``patience``
    seconds.

    An engine may list its GPUs for a dcgmi and refuse the diagnostic to it: then the next one is
    tried.
    """
    give_up = anyio.current_time() + patience
    waiting = False
    argv = _announced(run, engine, ours, allowed)
    while True:
        done = await _with_progress(run, engine, argv, allowed)
        if done.returncode == hostengine.VERSION_MISMATCH and engine.others:
            refused = engine.tool
            try:
                engine = await connect(run.query, engine.others, engine.address, run.progress)
            except hostengine.ToolsMissing:
                return engine, done  # no image needs all of them: the refusal stands
            if absent := [uuid for uuid in ours if uuid not in engine.gpus]:
                raise Inconclusive(
                    "WRONG_HOSTENGINE",
                    f"hostengine {engine.address} no longer lists {', '.join(absent)}; run the check again.",
                )
            run.progress(f"the engine refuses its diagnostic to {refused}; trying {engine.tool}")
            argv = _announced(run, engine, ours, allowed)
            continue
        if done.returncode not in hostengine.BUSY:
            return engine, done
        left = give_up - anyio.current_time()
        if left <= 0:
            raise Inconclusive(
                "ENGINE_BUSY",
                f"hostengine {engine.address} was busy with another diagnostic for {format_duration(patience)}; raise DCGM_QUEUE_TIMEOUT to wait longer.",
            )
        if not waiting:
            run.progress(
                f"the engine is busy with another diagnostic; waiting for up to {format_duration(patience)}"
            )
            waiting = True
        await anyio.sleep(min(random.uniform(*PAUSE), left))  # noqa: S311 (jitter)


def _announced(
    run: Run[Settings], engine: hostengine.Hostengine, ours: Sequence[str], allowed: float
) -> list[str]:
    argv = hostengine.diag_argv(engine, run.settings.level, ours, allowed)
    run.progress(f"running: {' '.join(argv)}")
    return argv


async def _with_progress(
    run: Run[Settings], engine: hostengine.Hostengine, argv: Sequence[str], allowed: float
) -> Completed:
    async def tick() -> None:
        started = anyio.current_time()
        while True:
            await anyio.sleep(STILL_RUNNING)
            run.progress(
                f"still running after {format_duration(round(anyio.current_time() - started))} of at most {format_duration(allowed)}"
            )

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        done = await run.command(
            argv,
            timeout=allowed + (LATER if "-t" in argv else 0.0),
            max_output=MAX_DOCUMENT,
            terminate=lambda elapsed: hostengine.stop_signal(engine, elapsed),
        )
        group.cancel_scope.cancel()
    return done


CHECK: Final = Check(
    name="dcgm-diag",
    condition="DcgmDiagnostic",
    component="GPU",
    settings=Settings,
    probe=probe,
    timeout_said=", ".join(
        f"{format_duration(TIMEOUTS[level])} at level {level}" for level in sorted(TIMEOUTS)
    ),
    on_inconclusive="allow",  # an outage of DCGM must not stop a cluster
    gpu_tests=None,  # which are clear depends on what was tested: its verdicts say it
    later=("check_dcgm.judge",),
    tool_variables=("^__DCGM_", "^DCGM_HOME_DIR$"),
    about="DCGM diagnostics of this pod's own GPUs, run by the node's hostengine.",
)


def main() -> NoReturn:
    """The program."""
    run_main(CHECK)
