"""The page of `register_model`: the new champion and its model card."""

from pathlib import Path

from perennial.contracts.gate import Registration, Verdict
from perennial.registry.model_card import CardContent, model_card, trigger_name
from perennial.reports.page import Page
from perennial.steps.decorator import StepResult


def write_report(path: Path, registration: Registration, content: CardContent) -> None:
    """Write the page."""
    replaced = registration.replaced_version
    page = Page(
        "Register model",
        outcome="passed",
        summary=f"{registration.name} version {registration.version} is champion"
        + (f" in place of version {replaced}." if replaced else ", the first one."),
    )
    page.values(
        {
            "version": registration.version,
            "replaces": f"version {replaced}" if replaced else "none: the first champion",
            "trigger": trigger_name(content.lineage),
            "weights": f"SHA-256 {registration.weights_sha256[:12]}…",
            "tracking run": registration.tracking_run_id,
        }
    )
    page.text(content.verdict.summary)
    page.details("Model card", model_card(content))
    page.details("Lineage", content.lineage.model_dump_json(indent=2))
    page.write(path)


def write_rejection(path: Path, verdict: Verdict) -> StepResult:
    """Write the page of a run whose challenger the gate rejected; return the step's result."""
    champion = verdict.champion_version
    kept = f"version {champion} stays champion" if champion else "there is still no champion"
    page = Page("Register model", outcome="neutral", summary=f"Nothing was registered: {kept}.")
    page.text(verdict.summary)
    page.write(path)
    summary = f"nothing to register: {verdict.summary}"
    return StepResult(parameters={"champion": False}, summary=summary)
