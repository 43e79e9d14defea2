"""Filter, prioritize, preempt and bind, as kube-scheduler asks for them over a snapshot, and the
port at which it does: plain HTTP on loopback, as whoever can call bind can place any pod. Every
call is answered with status 200; what is wrong stands in the answer's ``Error``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
from preflight_kube.admission.request_body import Body, Receive, ReviewRefused, Scope, read
from preflight_kube.admission.server import HttpServer
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import bind as binding
from preflight_gpu_scheduler.core import filter_prioritize as calls
from preflight_gpu_scheduler.core.bind import BindJob, BindOutcome
from preflight_gpu_scheduler.core.gpu_selection import Chosen, choose, mask_of
from preflight_gpu_scheduler.core.protocol import Runner, Steps
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
from preflight_gpu_scheduler.metrics import ExtenderMetrics
from preflight_gpu_scheduler.webhook.gang_start import GangStarts

log = get_logger(__name__)

NOT_READY: Final = "the cluster has not been read yet"
FAULT: Final = "the extender failed at this; its log says where"
Answer = (
    calls.FilterResult | calls.PreemptionResult | calls.BindingResult | Sequence[calls.Priority]
)
Send = Callable[[dict[str, Any]], Awaitable[None]]
_HEAD: Final = [(b"content-type", b"application/json")]
_CALLS: Final[dict[str, tuple[type[Any], Callable[[str], Answer]]]] = {
    "filter": (calls.ExtenderArgs, lambda why: calls.FilterResult(error=why)),
    "prioritize": (calls.ExtenderArgs, lambda _: ()),
    "preempt": (calls.ExtenderPreemptionArgs, lambda _: calls.PreemptionResult()),
    "bind": (calls.ExtenderBindingArgs, calls.BindingResult),
}
"""By verb, a method of the extender: what it gets, and the answer where something is wrong."""


class Extender:
    """Its answers are those of one event loop: no two binds here ever choose one GPU."""

    def __init__(
        self,
        client: Client,
        config: Config,
        state: GpuSnapshot,
        metrics: ExtenderMetrics,
        runner: Runner,
    ) -> None:
        self._client, self._config, self._state, self._metrics = client, config, state, metrics
        self._runner = runner
        self._placing: set[str] = set()  # uids of pods whose bind is under way
        self._starts = GangStarts(state, config, runner)
        state.listeners.append(self._changed)

    def filter(self, args: calls.ExtenderArgs) -> calls.FilterResult:
        """Which of the named nodes can give the pod its GPUs."""
        if not self._state.synced:
            return calls.FilterResult(error=NOT_READY)
        names = args.node_names or ()
        question = self._question(args.pod)
        if question.starts:
            return self._starts.filter(question, names)
        kept = self._starts.kept(question.pod.spec.priority or 0, names)
        self._metrics.kept.set(sum(kept.values()))
        most = None if question.pod.particular else calls.BEST
        return calls.filter_nodes(question, names, self._state.views(), kept, most)

    def prioritize(self, args: calls.ExtenderArgs) -> Sequence[calls.Priority]:
        """0–10 for each of the named nodes; 0 for all where nothing is known of the claim."""
        names = args.node_names or ()
        return calls.prioritize(self._question(args.pod), names, self._state.views())

    def preempt(self, args: calls.ExtenderPreemptionArgs) -> calls.PreemptionResult:
        """The nodes on which the pod gets its GPUs when those victims have gone."""
        victims = args.victims or {}
        if not self._state.synced:
            return calls.PreemptionResult()
        question = self._question(args.pod)
        own = dict(question.own)
        for name, evicted in victims.items():
            mask, ids = own.get(name, (0, ()))
            leases = (lease for pod in evicted.pods or () for lease in self._state.held_by(pod.uid))
            freed = (lease.gpu[1] for lease in leases if lease.gpu and lease.gpu[0] == name)
            own[name] = mask | mask_of(self._state.view(name).slots, freed), ids
        question = msgspec.structs.replace(question, own=own)
        chosen = calls.choices(question, victims, self._state.views())
        stay = (name for choice, alike in chosen if choice.ids for name in alike)
        return calls.PreemptionResult(victims={name: victims[name] for name in stay})

    async def bind(self, args: calls.ExtenderBindingArgs) -> calls.BindingResult:
        """Lock the GPUs, bind the pod."""
        if not self._state.synced:
            return calls.BindingResult(NOT_READY)
        pod = f"{args.pod_namespace}/{args.pod_name}"
        about = {"pod": pod, "uid": args.pod_uid, "node": args.node}
        try:
            outcome = await self._bind(args)
        except KubeError as error:
            outcome = BindOutcome(error=f"{error}")
        self._metrics.binds.labels("error" if outcome.error else "bound").inc()
        if outcome.error:
            log.warning("bind failed", error=outcome.error, **about)
        else:
            log.info("bound", gpus=list(outcome.ids), **about)
        return calls.BindingResult(outcome.error)

    async def _bind(self, args: calls.ExtenderBindingArgs) -> BindOutcome:
        pod = await self._pod(args)
        if pod is None:
            return BindOutcome(error=binding.GONE)
        claim, refused = self._state.claim_of(pod), self._state.refusal_of(pod)
        if claim is None or refused:
            return BindOutcome(error=refused)
        if claim.gang is not None and not pod.bound:
            member = await self._starts.arrive(pod, args.node)
            if isinstance(member, str):
                return BindOutcome(error=member)
            pod = member
        budget = self._config.seconds("bind_budget")
        return await self._runner.run(self.placing(pod, args.node, claim), budget)

    def placing(self, pod: Pod, node: str, claim: Claim) -> Steps[BindOutcome]:
        """The steps that bind the pod to ``node``. What they choose is held in memory until they
        end without a Binding, or a mirror shows what became of it: so one process never gives a GPU
        twice, whatever happens to leases. Of two binds of one pod the second ends at once: what it
        let go would be the first one's.
        """
        uid, outcome = pod.uid, BindOutcome(sent=True)  # until the contrary is known
        if uid in self._placing:
            return BindOutcome(error=binding.UNDER_WAY)
        self._placing.add(uid)
        try:
            outcome = yield from self._steps(pod, node, claim)
            return outcome
        finally:
            self._placing.discard(uid)
            self._state.let_go(node, pod, sent=outcome.sent)

    def _steps(self, pod: Pod, node: str, claim: Claim) -> Steps[BindOutcome]:
        state, uid = self._state, pod.uid
        uuids = state.uuids(node)
        leases = (lease for lease in state.held_by(uid) if lease.ours)
        own = {gpu[1]: lease for lease in leases if (gpu := lease.gpu) and gpu[0] == node}

        def pick(busy: frozenset[int], mine: tuple[int, ...]) -> Chosen:
            seen = state.view(node)
            if seen.blocked or state.uuids(node) != uuids:
                return Chosen(why=seen.blocked or messages.STATUS_CHANGED)
            # In memory a GPU may be held by this very bind already, and so not be free in the view.
            free = mask_of(seen.slots, mine) & ~mask_of(seen.slots, state.others(node, uid))
            free = (seen.free | free) & ~mask_of(seen.slots, busy)
            chosen = choose(seen.slots, free, claim.want, mine)
            state.hold(node, chosen.ids, pod)
            return chosen

        if not pod.bound and (reserved := pod.reserved) is not None and reserved.node == node:
            if state.view(node).blocked == messages.UNLOCKED:
                return BindOutcome(error=messages.UNLOCKED)
            if not uuids.keys() >= set(reserved.ids):
                return BindOutcome(error=messages.STATUS_CHANGED)
            if state.others(node, uid) & set(reserved.ids):
                return BindOutcome(error=messages.TAKEN)
            state.hold(node, reserved.ids, pod)
        job = BindJob(pod=pod, node=node, own=own, uuids=uuids, gang=claim.gang is not None)
        return (yield from binding.bind(job, pick, state.look))

    async def _pod(self, args: calls.ExtenderBindingArgs) -> Pod | None:
        """As the mirror has it, or as the API server does where that shows another one or none."""
        shown = self._state.pod((args.pod_namespace, args.pod_name))
        if shown is not None and shown.uid == args.pod_uid:
            return shown
        path = f"/api/v1/namespaces/{args.pod_namespace}/pods/{args.pod_name}"
        pod = await self._client.get_or_none(path, Pod)
        return pod if pod is not None and pod.uid == args.pod_uid else None

    def _question(self, pod: Pod) -> calls.Question:
        state, shown = self._state, self._state.pod(pod.key)
        if shown is not None and shown.uid == pod.uid and not (shown.gated and not pod.gated):
            pod = shown  # it may be the newer version; but a gate never comes back
        claim, refused = state.claim_of(pod), state.refusal_of(pod)
        held = calls.own_ids(state.held_by(pod.uid), pod) if claim is not None else {}
        own = {node: (mask_of(state.view(node).slots, ids), ids) for node, ids in held.items()}
        return calls.Question(pod=pod, claim=claim, own=own, refused=refused)

    def _changed(self, kind: str, key: tuple[str, str]) -> None:
        if kind == "pod":
            self._starts.changed(key, self._state.pod(key))


class Application:
    """An ASGI callable: /filter, /prioritize, /preempt, /bind."""

    def __init__(self, extender: Extender, metrics: ExtenderMetrics) -> None:
        self._extender, self.metrics = extender, metrics
        self.stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP; the kit's server calls it."""
        verb, started = str(scope["path"]).strip("/"), time.perf_counter()
        try:
            answer = await self._answer(verb, await read(scope, receive))
            error = getattr(answer, "error", "")
        except ReviewRefused as refused:
            answer, error = _refused(verb, refused.message), refused.message
        except Exception:
            log.exception("a fault of this program", verb=verb)
            answer, error = _refused(verb, FAULT), FAULT
        known = verb if verb in _CALLS else "other"
        self.metrics.seconds.labels(known).observe(time.perf_counter() - started)
        self.metrics.calls.labels(known, "error" if error else "ok").inc()
        encoded = msgspec.json.encode(answer)
        head = [*_HEAD, (b"content-length", str(len(encoded)).encode())]
        head += [(b"connection", b"close")] if self.stopping else []
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": encoded})

    async def _answer(self, verb: str, body: Body) -> Answer:
        if verb not in _CALLS:
            raise ReviewRefused(404, f"{verb:.40} is none of {', '.join(_CALLS)}")
        args = calls.read_call(body.read(), _CALLS[verb][0], body.size)
        if isinstance(args, str):
            log.warning("call unreadable", verb=verb, error=args)
            raise ReviewRefused(400, args)
        answer: Any = getattr(self._extender, verb)(args)
        answered: Answer = await answer if verb == "bind" else answer
        return answered


def _refused(verb: str, why: str) -> Answer:
    return _CALLS[verb][1](why) if verb in _CALLS else calls.BindingResult(why)


def serving(application: Application, port: int) -> HttpServer:
    """The port for kube-scheduler. At the end a bind under way has a moment; then it is left."""
    metrics = application.metrics
    return HttpServer("extender", application, metrics, None, host="127.0.0.1", port=port, drain=2)
