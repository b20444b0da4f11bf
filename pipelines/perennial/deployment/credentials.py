"""Credentials: tokens, read for every request, and a session of Kubeflow's login."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from perennial.clients.pipeline_api import Connection, PipelineApi
from perennial.contracts.errors import PerennialError
from perennial.deployment.profile import AuthSection, Profile

LOGIN_SECONDS = 30.0


def connect(profile: Profile) -> PipelineApi:
    """Return a client of the profile's server with the profile's credentials.

    Raises:
        PerennialError: credentials are missing, or the login page refuses them.
    """
    server = profile.server
    return PipelineApi(
        Connection(
            url=server.pipelines_url,
            namespace=server.namespace,
            token=_token(profile.auth),
            cookie=_dex_cookie(profile) if profile.auth.kind == "dex" else "",
            ca_file=server.ca_file,
            multi_user=server.multi_user,
        )
    )


def _token(auth: AuthSection) -> Callable[[], str] | None:
    match auth.kind:
        case "in-cluster":
            return file_token(Path(auth.token_file))
        case "token":
            return lambda: variable(auth.token_variable)
        case _:
            return None


def file_token(path: Path) -> Callable[[], str]:
    """A token that the kubelet keeps fresh in a file."""

    def read() -> str:
        try:
            return path.read_text().strip()
        except OSError as error:
            raise PerennialError(
                f"there is no token in {path}",
                evidence=str(error),
                action="mount a service-account token for the audience pipelines.kubeflow.org",
            ) from error

    return read


def variable(name: str) -> str:
    """The value of an environment variable that holds a secret."""
    value = os.environ.get(name, "")
    if not value:
        raise PerennialError(
            f"the environment variable {name} is not set",
            evidence="[auth] of the profile names it",
            action=f"export {name}, or change [auth]",
        )
    return value


def _dex_cookie(profile: Profile) -> str:
    """Log in as a browser would: follow to the login page, send the form, keep the cookies."""
    server, auth = profile.server, profile.auth
    form = {"login": variable(auth.username_variable), "password": variable(auth.password_variable)}
    session = requests.Session()
    # With each request: REQUESTS_CA_BUNDLE would win over the session's own.
    how: dict[str, Any] = {"timeout": LOGIN_SECONDS, "verify": server.ca_file or None}
    try:
        page = session.get(server.pipelines_url, **how)
        if not page.history:
            raise _login_failed(
                server.pipelines_url, 'the server asks for no login; set auth.kind = "none"'
            )
        if _is_choice_of_connectors(page.url):
            local = urljoin(page.url, "auth/local?" + urlsplit(page.url).query)
            page = session.get(local, **how)
        if urlsplit(server.pipelines_url).scheme == "https" != urlsplit(page.url).scheme:
            raise _login_failed(page.url, "this login page would get the password unencrypted")
        answer = session.post(page.url, data=form, **how)
        if _is_approval(answer.url):
            answer = session.post(answer.url, data={"approval": "approve"}, **how)
    except requests.RequestException as error:
        raise _login_failed(server.pipelines_url, str(error)) from error
    if not answer.history or answer.status_code >= requests.codes.bad_request:
        raise _login_failed(
            page.url, f"the login page answers {answer.status_code}: name or password is wrong"
        )
    return "; ".join(f"{cookie.name}={cookie.value}" for cookie in session.cookies)


def _is_choice_of_connectors(url: str) -> bool:
    return urlsplit(url).path.rstrip("/").endswith("/auth")


def _is_approval(url: str) -> bool:
    return urlsplit(url).path.rstrip("/").endswith("/approval")


def _login_failed(url: str, why: str) -> PerennialError:
    return PerennialError(
        "logging in to Kubeflow failed",
        evidence=f"{url}: {why}",
        action="check [auth] of the profile and the two variables that it names",
    )
