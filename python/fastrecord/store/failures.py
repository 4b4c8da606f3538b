"""`refusal`: what a failed request means, and whether it can help to make it again.

obstore has few kinds of errors: the status, and the store's own code and message, are in their texts.
"""

from __future__ import annotations

import html
import re
from contextlib import suppress

from fastrecord.errors import Code
from fastrecord.store.address import without_secrets
from fastrecord.store.credentials import way_to_credentials

_STATUS = re.compile(r"status code: (\d{3})([\w ]*)")
_URL = re.compile(r"Error performing [A-Z]+ (https?://[^\s?]+)")
_REGION = re.compile(r"expecting '([\w-]+)'|<Region>([\w-]+)</Region>")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"|InvalidCertificate\([\s\w(]*?(\w+)[\s,]*\)')
_REGION_HEADER = "x-amz-bucket-region"
# Seconds to ask which region a bucket is in.
_ASK_SECONDS = 3
# Answers that another attempt may not get; the last codes say that bytes were lost or changed on the way.
_PASSING_STATUS = {408, 429, 500, 502, 503, 504, 509, 529}
_PASSING_CODES = {
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
    "NoSuchUpload",
    "InvalidPart",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
}
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_ELSEWHERE_CODES = {"PermanentRedirect", "AuthorizationHeaderMalformed"}
# What a login page answers where a store would answer otherwise.
_SIGNS_OF_NO_STORE = ("Received non-partial response", "ETag Header missing", "Got invalid ")
NO_STORE = (
    "the answer is not that of a store: {}: perhaps the login page of a network, a proxy, or a web server that sends "
    "no parts of files: check the network, HTTPS_PROXY and the endpoint"
)
ON_THE_WAY = "bytes are changed on the way: check the network and proxies"
NOWHERE = "no server can be reached there: {}: check the host and the port in the URL or the endpoint, and HTTPS_PROXY"
# How obstore words the answer 200 of S3 to a deletion that S3 refuses.
_NOT_DELETED = re.compile(r"failed for key .*?: (?P<message>.*?)\.? \(code: (?P<code>\w+)\)")
# Where machines in a cloud ask for credentials, as obstore's errors name it.
_MACHINE_CREDENTIALS = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/")


class ShortError(Exception):
    """An answer that does not have the bytes it should have."""


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a failed request, if it was answered."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def said(error: Exception) -> str:
    """Return what a store has answered, or why it has not, on one line and without secrets."""
    return without_secrets(_said(error))


def _said(error: Exception) -> str:
    text, _, debug = str(error).partition("\nDebug source:")
    code, message = _code_and_message(text)
    if code:
        return f"{code}: {message}".removesuffix(": ")
    if status := _STATUS.search(text):
        return f"{status[1]}{status[2]}"
    if "kind: Timeout" in debug:
        return "no answer came in time (silence_seconds)"
    if causes := [found[1] or found[2] for found in _CAUSE.finditer(debug)]:
        return causes[-1]
    if "IncompleteBody" in debug or "IncompleteMessage" in debug:
        return "the connection ended before the answer"
    return " ".join(text.strip().rpartition(" - ")[2].split())


def is_missing(error: Exception) -> bool:
    """Return whether a request failed because there is no such object."""
    return isinstance(error, FileNotFoundError) and _tag(str(error), "Code") not in _PASSING_CODES | {"NoSuchBucket"}


def is_unconnected(error: Exception) -> bool:
    """Return whether a request failed because no connection was made: no such name, or nothing listens there."""
    return "kind: Connect," in str(error)


def refusal(error: Exception, where: str, *, has_answered: bool = False) -> Exception | None:
    """Return the error to raise for a failed request; None if it can help to make it again.

    Args:
        error: obstore's.
        where: The URL of the object.
        has_answered: Whether the store has answered another request: there were credentials then.
    """
    text, status, what = str(error), status_of(error), said(error)
    code, _ = _code_and_message(text)
    if isinstance(error, ShortError) or code in _PASSING_CODES or status in _PASSING_STATUS:
        return None
    if any(place in text for place in _MACHINE_CREDENTIALS) and not has_answered:
        says = (
            f"the environment names no credentials, and this machine has none: {way_to_credentials(where)} "
            f"(docs/stores.md): {what}"
        )
    elif "InvalidCertificate" in text:
        says = (
            f"the certificate of the server is not trusted: {what}: name its issuer's, a PEM file, in SSL_CERT_FILE; "
            "or a proxy stands between: check HTTPS_PROXY"
        )
    elif "InvalidContentType" in text:
        says = "the server does not speak TLS: check https:// in the URL or the endpoint"
    elif "Name or service not known" in text:
        says = "there is no host of this name: check the URL, the region and the endpoint"
    elif status in (405, 501):
        says = f"this kind of store is only read: {what}"
    elif any(sign in text for sign in _SIGNS_OF_NO_STORE) or "<html" in text.lower() or status in (302, 303, 308):
        says = NO_STORE.format(f"a web page, status {status}" if status else what)
    elif "Received redirect" in text or status in (301, 307) or code in _ELSEWHERE_CODES:
        region = _region(text)
        is_known = region or "which one, its owner can say"
        says = f"the bucket is in another region ({is_known}): set AWS_REGION={region or '...'}, and check the endpoint"
    elif status is None and code != "AccessDenied":
        return None
    elif code == "NoSuchBucket":
        says = f"the store has no such bucket: {what}: check the URL, the region and the endpoint"
    elif code in _EXPIRED_CODES:
        says = f"the credentials have expired: {what}: get new ones, such as by `aws sso login`"
    elif code == "RequestTimeTooSkewed":
        says = f"the clock of this machine is wrong: {what}: set it"
    elif status in (None, 401, 403):
        says = f"the store refuses access: {what}: check the credentials and the region"
    else:
        says = f"the store refuses the request: {what}: check the URL, the region and the endpoint"
    return Code.STORE.error(f"{where}: {says}")


def _code_and_message(text: str) -> tuple[str, str]:
    """Return the code and the message in a store's answer; empty without them."""
    if refused := _NOT_DELETED.search(text):
        return refused["code"], refused["message"]
    return _tag(text, "Code"), _tag(text, "Message").removesuffix(".")


def _tag(text: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _region(text: str) -> str | None:
    """Return the region of a bucket that has been asked for in another one, if the store says it."""
    if found := _REGION.search(text):
        return found[1] or found[2]
    if url := _URL.search(text):
        import urllib.error  # slow to import, and not in each command
        import urllib.request

        with suppress(OSError, ValueError):
            request = urllib.request.Request(url[1], method="HEAD")
            try:
                with urllib.request.urlopen(request, timeout=_ASK_SECONDS) as answer:
                    headers = answer.headers
            except urllib.error.HTTPError as err:
                headers = err.headers
            region: str | None = headers.get(_REGION_HEADER)
            return region
    return None
