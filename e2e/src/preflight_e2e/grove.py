"""A Grove of the tests' own on a cluster: it makes PodCliques, PodGangs and pods of a namespace's
sets, and writes its templates over them again at every turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client
from preflight_testing.grove import gang, made, podclique, pods, reapplied

Json = dict[str, Any]


class Grove:
    """``refused``: what the API server said to writes that it refused, which are tried again at the
    next turn.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.api: Any = client.CoreV1Api()
        self.custom: Any = client.CustomObjectsApi()
        self.refused: list[str] = []

    def apply(self, set_: Json) -> None:
        """Make it, or write it over the one that is there. Raises ApiException
        where it is refused.
        """
        there = self.all("podcliquesets").get(set_["metadata"]["name"])
        if there is None:
            self.custom.create_namespaced_custom_object(*self._at("podcliquesets"), set_)
        else:
            body = {**set_, "metadata": {**there["metadata"], **set_["metadata"]}}
            self.custom.replace_namespaced_custom_object(
                *self._at("podcliquesets"), set_["metadata"]["name"], body
            )

    def scale(self, name: str, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        self.custom.patch_namespaced_custom_object(*self._at("podcliquesets"), name, body)

    def delete(self, name: str) -> None:
        self.custom.delete_namespaced_custom_object(*self._at("podcliquesets"), name)

    def all(self, plural: str) -> dict[str, Json]:
        items = self.custom.list_namespaced_custom_object(*self._at(plural))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def turn(self) -> None:
        """One reconciliation of every set, without scaling groups."""
        sets, cliques, gangs = (
            self.all("podcliquesets"),
            self.all("podcliques"),
            self.all("podgangs"),
        )
        wanted = {
            expected.name: (set_, expected) for set_ in sets.values() for expected in made(set_, {})
        }
        for name in cliques.keys() - wanted.keys():
            self._gone("podcliques", name)
        for name, (set_, expected) in wanted.items():
            body, old = podclique(set_, expected, self.namespace), cliques.get(name)
            del body["metadata"]["finalizers"]  # nobody is there to take it away after a test
            with self._recorded():
                if old is None:
                    cliques[name] = self.custom.create_namespaced_custom_object(
                        *self._at("podcliques"), body
                    )
                else:
                    at = (*self._at("podcliques"), name)
                    cliques[name] = self.custom.replace_namespaced_custom_object(
                        *at, reapplied(old, body)
                    )
        owners = {expected.gang: set_ for set_, expected in wanted.values()}
        for name in gangs.keys() - owners.keys():
            self._gone("podgangs", name)
        for name in owners.keys() - gangs.keys():
            members = [member for _, member in wanted.values() if member.gang == name]
            with self._recorded():
                self.custom.create_namespaced_custom_object(
                    *self._at("podgangs"), gang(name, owners[name], members)
                )
        there = {
            pod.metadata.name: pod for pod in self.api.list_namespaced_pod(self.namespace).items
        }
        for clique in (cliques[name] for name in wanted if name in cliques):
            for pod in pods(clique):
                name = pod["metadata"]["name"]
                with self._recorded():
                    if name not in there:
                        self.api.create_namespaced_pod(self.namespace, pod)
                    elif there[name].spec.scheduling_gates:
                        self.api.patch_namespaced_pod(
                            name, self.namespace, {"spec": {"schedulingGates": None}}
                        )

    def _at(self, plural: str) -> tuple[str, str, str, str]:
        group = "scheduler.grove.io" if plural == "podgangs" else "grove.io"
        return group, "v1alpha1", self.namespace, plural

    def _gone(self, plural: str, name: str) -> None:
        with self._recorded():
            self.custom.delete_namespaced_custom_object(*self._at(plural), name)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except client.ApiException as error:
            self.refused.append(str(json.loads(error.body or "{}").get("message", error.reason)))
