"""What Kueue makes of jobs: Workloads, with the conditions that version 0.19 gives them."""

# Type, status, reason, message.
WAITING = [
    ("QuotaReserved", "False", "Pending",
     "couldn't assign flavors to pod set master: insufficient unused quota for nvidia.com/gpu in "
     "flavor a100, 2 more needed"),
]  # fmt: skip
ADMITTED = [
    ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue team-a"),
    ("Admitted", "True", "Admitted", "The workload is admitted"),
]


def workload(job, conditions, **status):
    """What Kueue makes of a job that names a queue."""
    metadata = job["metadata"]
    now = "2026-01-01T00:00:00Z"
    owner = {
        "apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"],
        "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    written = [
        {"type": kind, "status": value, "reason": reason, "message": message,
         "lastTransitionTime": now, "observedGeneration": 1}
        for kind, value, reason, message in conditions
    ]  # fmt: skip
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": f"{job['kind'].lower()}-{metadata['name']}-5e3de", "uid": f"w-{metadata['uid']}",
            "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]}, "ownerReferences": [owner],
            "creationTimestamp": now, "generation": 1,
        },
        "spec": {
            "active": True, "queueName": "team", "priority": 0, "podSets": pod_sets(job["spec"]),
        },
        "status": {"conditions": written, **status},
    }  # fmt: skip


def pod_sets(spec):
    """By kind: a PyTorchJob has one for each kind of replica, a TrainJob one for its machines."""
    if "trainer" in spec:
        trainer = spec["trainer"]
        container = {"name": "node", "image": trainer["image"]}
        template = {"spec": {"containers": [container]}}
        return [{"name": "node", "count": trainer["numNodes"], "template": template}]
    return [
        {"name": name.lower(), "count": replica["replicas"],
         "template": {"spec": replica["template"]["spec"]}}
        for name, replica in spec["pytorchReplicaSpecs"].items()
    ]  # fmt: skip
