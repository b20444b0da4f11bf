"""S3 errors: boto3 errors, and answers of servers that are not a store, as our own errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from boto3.exceptions import Boto3Error
from botocore.awsrequest import AWSResponse
from botocore.exceptions import BotoCoreError, ClientError
from botocore.model import OperationModel

from perennial.clients.object_store import ConflictError, missing_object
from perennial.contracts.errors import BadDataError, PerennialError

CONNECTION_ACTION = "check the bucket's name, AWS_ENDPOINT_URL_S3 and the credentials"
_DISK_ACTION = "check that the local disk has space and may be written to"
_MISSING_CODES = ("404", "NoSuchKey")


class DamagedError(Exception):
    """A download differs from the stored object; another attempt may help."""


@contextmanager
def explained(doing: str, uri: str, key: str = "") -> Iterator[None]:
    """The one place where what boto3 raises becomes our own error."""
    try:
        yield
    except (PerennialError, ConflictError, DamagedError):
        raise
    except Exception as error:
        # Servers that break the protocol raise anything in boto3: KeyError, ValueError, ...
        if key and is_missing(error):
            raise missing_object(f"{uri}/{key}") from error
        if key and _code(error) in ("PreconditionFailed", "412"):
            raise BadDataError(
                f"{uri}/{key} changed while it was read",
                evidence=str(error),
                action="write partitions once; corrections go into a new partition",
            ) from error
        is_known = isinstance(error, BotoCoreError | ClientError | Boto3Error | TimeoutError)
        is_local = isinstance(error, OSError) and bool(error.filename)
        raise PerennialError(
            f"cannot {doing} {uri}",
            evidence=str(error) if is_known else f"{type(error).__name__}: {error}",
            action=_DISK_ACTION if is_local else CONNECTION_ACTION,
        ) from error


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def is_missing(error: Exception) -> bool:
    """Whether the store knows no such object; a page of HTML is not the store's answer."""
    if not isinstance(error, ClientError) or _code(error) not in _MISSING_CODES:
        return False
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return not _is_foreign_page(headers)


def _is_foreign_page(headers: Mapping[str, str]) -> bool:
    names = [name.lower() for name in headers]
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return kind.startswith("text/html") and not any(name.startswith("x-amz") for name in names)


def refuse_html(http_response: AWSResponse, model: OperationModel, **_: object) -> None:
    """Stop where a proxy, a login page or a captive portal answers in the store's place."""
    if http_response.status_code < 300 and _is_foreign_page(http_response.headers):
        http_response.raw.close()
        raise unlike_s3(f"{model.name} was answered with a page of HTML, without headers of S3")


def unlike_s3(evidence: str) -> PerennialError:
    """The error for an answer that breaks the protocol."""
    return PerennialError(
        "the object store does not answer as S3 does",
        evidence=evidence,
        action="check AWS_ENDPOINT_URL_S3, and whether a proxy or a login page stands in between",
    )
