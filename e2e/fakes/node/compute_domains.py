"""The controller of ComputeDomains, as far as claims go: a finalizer, a claim template, the nodes
that have joined, and the end.

One process for the cluster, of the fake node's image. It keeps nothing of its own: whatever it has
begun stands in the objects, and one that is started again goes on from there. What happens is
printed as JSON lines. Nothing of Preflight is imported.
"""

import json
import sys
import time

from kube import api, found

GROUP = "resource.nvidia.com"
CLAIMS = "/apis/resource.k8s.io/v1"
DRIVER = "compute-domain.nvidia.com"
CLASS = "compute-domain-default-channel.nvidia.com"
FINALIZER = LABEL = f"{GROUP}/computeDomain"
MERGE = "application/merge-patch+json"


def tell(**line):
    print(json.dumps(line), flush=True)


class Controller:
    """``api(method, path, body, kind)`` raises OSError; ``found(path)`` is None where there is
    nothing.
    """

    def __init__(self, api, found, tell):
        self.api, self.found, self.tell = api, found, tell

    def turn(self):
        """Look at every ComputeDomain once. Raises OSError where the list cannot be had."""
        domains = (self.found(f"/apis/{GROUP}/v1beta1/computedomains") or {"items": []})["items"]
        joined = self.joined() if domains else {}
        for domain in domains:
            try:
                self.look(domain, joined.get(domain["metadata"]["uid"], []))
            except (
                OSError
            ) as error:  # somebody was quicker, or something is in the way: again at the next turn
                self.tell(domain=domain["metadata"]["name"], error=str(error))

    def joined(self):
        """By domain, the nodes with a claim for it that the scheduler has allocated."""
        nodes = {}
        for claim in self.api("GET", f"{CLAIMS}/resourceclaims")["items"]:
            devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
            for config in devices.get("config", []):
                if config.get("opaque", {}).get("driver") == DRIVER:
                    pools = {one["pool"] for one in devices["results"] if one["driver"] == DRIVER}
                    nodes.setdefault(config["opaque"]["parameters"].get("domainID"), set()).update(
                        pools
                    )
        return nodes

    def look(self, domain, nodes):
        meta = domain["metadata"]
        path = f"/apis/{GROUP}/v1beta1/namespaces/{meta['namespace']}/computedomains/{meta['name']}"
        name = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        templates = f"{CLAIMS}/namespaces/{meta['namespace']}/resourceclaimtemplates"
        there = self.found(f"{templates}/{name}")
        mine = there is not None and there["metadata"].get("labels", {}).get(LABEL) == meta["uid"]
        if meta.get("deletionTimestamp"):
            if mine:
                self.api("DELETE", f"{templates}/{name}")
            self.finalizers(
                path, meta, [one for one in meta.get("finalizers", []) if one != FINALIZER]
            )
            self.tell(ended=meta["name"])
            return
        if FINALIZER not in meta.get("finalizers", []):
            self.finalizers(path, meta, [*meta.get("finalizers", []), FINALIZER])
        if there is None:
            self.api("POST", templates, template(name, meta["uid"]))
            self.tell(template=name, domain=meta["uid"])
        elif not mine:
            return  # somebody else's: tried for ever, and told to nobody, as the real one does
        joined = [
            {"name": node, "index": i, "status": "Ready"} for i, node in enumerate(sorted(nodes))
        ]
        status = {"status": "Ready", "nodes": joined}
        if domain.get("status") != status:
            self.api("PATCH", f"{path}/status", {"status": status}, MERGE)

    def finalizers(self, path, meta, wanted):
        body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": wanted}}
        self.api("PATCH", path, body, MERGE)


def template(name, uid):
    """One claim for each pod: the node's channel, for this domain."""
    parameters = {
        "allocationMode": "Single",
        "apiVersion": f"{GROUP}/v1beta1",
        "domainID": uid,
        "kind": "ComputeDomainChannelConfig",
    }
    devices = {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CLASS}}],
        "config": [
            {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": parameters}}
        ],
    }
    labels = {LABEL: uid, f"{GROUP}/computeDomainTarget": "Workload"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "labels": labels},
        "spec": {"spec": {"devices": devices}},
    }


def main():
    controller = Controller(api, found, tell)
    while True:
        try:
            controller.turn()
        except OSError as error:
            tell(error=str(error))
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
