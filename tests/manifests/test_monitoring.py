"""Alerts and dashboard speak of series that exist, and of pages that say what to do."""

import json
import re

import pytest

from cluster_manifests import K8S, WATCHED, rule_groups
from perennial.deployment import exporter

RULES = [rule for group in rule_groups() for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
DASHBOARDS = [json.loads((folder / "dashboard.json").read_text()) for folder in WATCHED]
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"]
    for dashboard in DASHBOARDS
    for panel in dashboard["panels"]
    for target in panel["targets"]
]
# What `perennial exporter` serves; tests/pipelines/test_exporter.py scrapes every one of them.
OURS = {f"perennial_{name}" for name in exporter.SERIES}
# Series → who serves it. Names of Argo's, Kueue's and KFP's were read in their sources of 2026-08.
SERIES = {
    "argo_workflows_error_count": "Argo's controller, 3.6 and later",
    "argo_workflows_gauge": "Argo's controller, 3.6 and later",
    "argo_workflows_queue_depth_gauge": "Argo's controller",
    "container_memory_working_set_bytes": "kubelet (cAdvisor)",
    "kube_cronjob_created": "kube-state-metrics",
    "kube_cronjob_spec_suspend": "kube-state-metrics",
    "kube_cronjob_status_last_successful_time": "kube-state-metrics",
    "kube_deployment_status_replicas_available": "kube-state-metrics",
    "kube_pod_container_status_last_terminated_reason": "kube-state-metrics",
    "kube_pod_container_status_terminated_reason": "kube-state-metrics",
    "kube_pod_container_status_waiting_reason": "kube-state-metrics",
    "kube_pod_labels": "kube-state-metrics",
    "kube_pod_status_phase": "kube-state-metrics",
    "kube_pod_status_reason": "kube-state-metrics",
    "kube_pod_status_unschedulable": "kube-state-metrics",
    "kube_resourcequota": "kube-state-metrics",
    "kubelet_volume_stats_available_bytes": "kubelet",
    "kubelet_volume_stats_capacity_bytes": "kubelet",
    "kueue_pending_workloads": "Kueue",
    "resource_manager_recurring_run_report_gap_bucket": "KFP's server",
    "training_operator_jobs_failed_total": "training operator",
    "training_operator_jobs_successful_total": "training operator",
    "up": "Prometheus",
}
WORDS = {
    "absent", "absent_over_time", "and", "by", "group_left", "histogram_quantile", "ignoring", "increase", "le",
    "max", "on", "or", "rate", "sum", "time", "type", "namespace", "pod", "reason", "phase", "cronjob", "queue_name",
    "cluster_queue", "status", "job_namespace", "kind", "model", "resource", "state", "unless",
}  # fmt: skip


def names_in(query):
    outside = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", query)
    return {word for word in re.findall(r"[a-z_][a-z_0-9:]*", outside) if not word.isdigit()}


def test_every_series_is_exported_by_a_component():
    used = set().union(*map(names_in, QUERIES)) - WORDS
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    assert used - recorded - OURS == set(SERIES)


@pytest.mark.parametrize("query", QUERIES)
def test_brackets_of_a_query_are_closed(query):
    pairs, open_ = {")": "(", "}": "{", "]": "["}, []
    for sign in re.sub(r"\"[^\"]*\"", "", query):
        if sign in pairs.values():
            open_.append(sign)
        elif sign in pairs:
            assert open_.pop() == pairs[sign]
    assert not open_


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_leads_to_a_section_that_exists(alert):
    assert alert["labels"]["severity"] in ("warning", "critical")
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (K8S / page).read_text(), re.M)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert anchor in anchors


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["title"])
def test_panels_have_numbers_of_their_own_and_do_not_overlap(dashboard):
    panels = dashboard["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len({panel["id"] for panel in panels}) == len(panels) == len(places)
