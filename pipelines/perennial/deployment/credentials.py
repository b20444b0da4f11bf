"""Credentials: tokens, read for every request, and a session of Kubeflow's login."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from perennial.clients.pipeline_api import PipelineApi
from perennial.contracts.errors import PerennialError
from perennial.deployment.profile import AuthSection, Profile

LOGIN_SECONDS = 30.0
TOKEN, USERNAME, PASSWORD = "KFP_TOKEN", "DEX_USERNAME", "DEX_PASSWORD"
"""Environment variables; the login name is usually an e-mail address."""


def connect(profile: Profile) -> PipelineApi:
    """Return a client of the profile's server with the profile's credentials.

    Raises:
        PerennialError: credentials are missing, or the login page refuses them.
    """
    server = profile.server
    return PipelineApi(
        server.pipelines_url,
        server.namespace if server.multi_user else None,
        token=_token(profile.auth),
        cookie=_dex_cookie(profile) if profile.auth.kind == "dex" else "",
        ca_file=server.ca_file,
    )


def _token(auth: AuthSection) -> Callable[[], str] | None:
    """Return what reads the token of the next request."""
    if auth.kind == "in-cluster":
        return partial(_read_token, Path(auth.token_file))
    return partial(_variable, TOKEN) if auth.kind == "token" else None


def _read_token(path: Path) -> str:
    """Read a token that the kubelet keeps fresh in a file."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise PerennialError(
            f"there is no token in {path}",
            evidence=str(error),
            action="mount a service-account token for the audience pipelines.kubeflow.org",
        ) from error


def _variable(name: str) -> str:
    """Read an environment variable that holds a secret."""
    value = os.environ.get(name, "")
    if not value:
        raise PerennialError(
            f"the environment variable {name} is not set",
            evidence="auth.kind of the profile needs it",
            action=f"export {name}, or change [auth]",
        )
    return value


def _dex_cookie(profile: Profile) -> str:
    """Log in as a browser would: follow to the login page, send the form, keep the cookies."""
    server = profile.server
    form = {"login": _variable(USERNAME), "password": _variable(PASSWORD)}
    session = requests.Session()
    # With each request: REQUESTS_CA_BUNDLE would win over the session's own.
    options: dict[str, Any] = {"timeout": LOGIN_SECONDS, "verify": server.ca_file or None}
    try:
        page = session.get(server.pipelines_url, **options)
        # A login page is reached by a redirect.
        if not page.history:
            raise _login_failed(
                server.pipelines_url, 'the server does not ask for a login; set auth.kind = "none"'
            )
        if _path(page.url).endswith("/auth"):  # a choice of connectors
            local = urljoin(page.url, "auth/local?" + urlsplit(page.url).query)
            page = session.get(local, **options)
        if urlsplit(server.pipelines_url).scheme == "https" != urlsplit(page.url).scheme:
            raise _login_failed(page.url, "this login page would get the password unencrypted")
        answer = session.post(page.url, data=form, **options)
        if _path(answer.url).endswith("/approval"):
            answer = session.post(answer.url, data={"approval": "approve"}, **options)
    except requests.RequestException as error:
        raise _login_failed(server.pipelines_url, str(error)) from error
    if not answer.history or answer.status_code >= requests.codes.bad_request:
        raise _login_failed(
            page.url, f"the login page answers {answer.status_code}: name or password is wrong"
        )
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in session.cookies)


def _path(url: str) -> str:
    return urlsplit(url).path.rstrip("/")


def _login_failed(url: str, why: str) -> PerennialError:
    return PerennialError(
        "logging in to Kubeflow failed",
        evidence=f"{url}: {why}",
        action=f"check [auth] of the profile, {USERNAME} and {PASSWORD}",
    )
