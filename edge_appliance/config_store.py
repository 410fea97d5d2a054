"""The sections [store] and [spool]: where parts go, with which credentials, and what waits for it on the disk.

Credentials lie in a file, never in the configuration. This module knows its format, because `config` checks it at
start and the store reads it again whenever it changes.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from edge_appliance import config_values as values
from edge_appliance.config_reader import Reader
from edge_appliance.config_values import Key

Scheme = Literal["file", "s3", "gs", "az"]

MAX_CREDENTIALS_BYTES: Final = 65_536

_SCHEMES: Final[Mapping[str, Scheme]] = {"file": "file", "s3": "s3", "gs": "gs", "az": "az"}
_BUCKET: Final = values.name(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", "a bucket of letters, digits, '.', '-' and '_'")


class StoreUrl(msgspec.Struct, frozen=True):
    """Where the store is: a directory, or a bucket (a container in Azure) and what all keys in it begin with."""

    scheme: Scheme
    directory: Path | None = None
    bucket: str = ""
    prefix: str = ""

    def __str__(self) -> str:
        if self.directory is not None:
            return self.directory.as_uri()
        return f"{self.scheme}://{self.bucket}{'/' if self.prefix else ''}{self.prefix}"


def store_url(value: object) -> StoreUrl:
    """Return the place that a URL names."""
    text = values.text(value)
    url = urlsplit(text)
    scheme = _SCHEMES.get(url.scheme)
    expected = "expected file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
    if scheme is None or url.query or url.fragment or "@" in url.netloc:
        raise ValueError(f"{expected}, got {text!r}")
    path = unquote(url.path)
    if scheme == "file":
        directory = Path(path)
        if url.netloc not in ("", "localhost") or not directory.is_absolute():
            raise ValueError(f"expected file:// and an absolute path, such as file:///srv/store, got {text!r}")
        return StoreUrl("file", directory)
    prefix = path.strip("/")
    if any(segment in ("", ".", "..") for segment in prefix.split("/")) and prefix:
        raise ValueError(f"{expected}; the prefix has an empty or dotted segment")
    return StoreUrl(scheme, None, str(_BUCKET(url.netloc)), prefix)


def _server(value: object) -> str:
    text = values.text(value)
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ValueError(f"expected http:// or https:// with a host, such as https://store:9000, got {text!r}")
    if "@" in url.netloc:
        raise ValueError("a user name or password does not belong here: this text is shown in status and journal")
    return text.rstrip("/")


def _rate(value: object) -> int:
    text = value.strip().removesuffix("/s") if isinstance(value, str) else value
    try:
        return int(values.size()(text))  # type: ignore[call-overload,no-any-return]
    except ValueError:
        raise ValueError(
            f'expected a size a second such as "500KB/s" or "2MiB/s", 0 for no limit, got {value!r}'
        ) from None


_optional_path = values.optional(values.absolute_path)
_label = values.name(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, '-', '_' or '.'")
_region = values.name(r"[A-Za-z0-9-]{0,64}", "a region of letters, digits and '-'")
_account = values.name(r"[a-z0-9]{0,24}", "a storage account of lower-case letters and digits")


class StoreSection(msgspec.Struct, frozen=True):
    """[store]: where parts go."""

    url: Annotated[StoreUrl, Key("url", "", values.optional(store_url))]
    # For whatever is not the provider's own service: MinIO, SeaweedFS, Ceph, Azurite.
    endpoint: Annotated[str | None, Key("endpoint", "", values.optional(_server))]
    region: Annotated[str, Key("region", "", _region)]
    path_style: Annotated[bool, Key("path_style", True, values.boolean)]
    account: Annotated[str, Key("account", "", _account)]
    credentials_file: Annotated[Path | None, Key("credentials_file", "", _optional_path)]
    systemd_credential: Annotated[str | None, Key("systemd_credential", "", values.optional(_label))]
    ca_file: Annotated[Path | None, Key("ca_file", "", _optional_path)]
    proxy: Annotated[str | None, Key("proxy", "", values.optional(_server))]
    # Too short: a slow link never gets anything done. Too long: an outage is noticed late, a query waits.
    connect_timeout_s: Annotated[float, Key("connect_timeout", "5s", values.duration_s("100ms", "5m"))]
    # For the answer; a body has more time, as much as a link of 64 KiB/s needs.
    timeout_s: Annotated[float, Key("timeout", "30s", values.duration_s("1s", "1h"))]
    # Of one request, on top of the parts that are sent again for ever.
    retries: Annotated[int, Key("retries", 3, values.integer(0, 20))]
    # Parts on their way at once. Each is in memory as a whole, a few MiB.
    uploads: Annotated[int, Key("uploads", 2, values.integer(1, 16))]
    # Bytes a second, averaged over parts; 0: no limit.
    max_bandwidth_bytes: Annotated[int, Key("max_bandwidth", "0B/s", _rate)]
    # Copies of uploaded parts for queries; the least used go first. Not used by a directory on the same file system.
    keep_local_bytes: Annotated[int, Key("keep_local", "1GiB", values.size())]
    credentials_path: Path | None
    """The file with credentials, whichever key named it."""
    credentials_source: str
    """The same in words, for messages."""

    @property
    def directory(self) -> Path | None:
        """The directory of a file:// store; None for object storage."""
        return self.url.directory


class SpoolSection(msgspec.Struct, frozen=True):
    """[spool]: parts that the store does not have yet."""

    # Too small: a short outage stops intake. Too large: the disk fills up, and wal.min_free stops intake then.
    max_bytes: Annotated[int, Key("max_bytes", "4GiB", values.size("64KiB"))]
    # "stop-ack": nothing is acknowledged until the store takes parts. "drop-oldest": the oldest rows are lost.
    policy: Annotated[
        Literal["stop-ack", "drop-oldest"], Key("policy", "stop-ack", values.one_of("stop-ack", "drop-oldest"))
    ]


def derive_store(
    reader: Reader, store: dict[str, Any], data_dir: Path, environ: Mapping[str, str], *, is_checked: bool
) -> list[str]:
    """Fill in what follows from other keys and record what does not fit; returns notices for the journal.

    `is_checked`: whether secrets must be there and are looked at.
    """
    store["url"] = store["url"] or StoreUrl("file", data_dir / "store")
    url: StoreUrl = store["url"]
    if url.scheme == "file":
        for key in ("endpoint", "credentials_file", "systemd_credential", "proxy", "account"):
            if store[key]:
                reader.relate([("store", key)], lambda: True, lambda: "a file:// store does not use it")
    reader.relate(
        [("store", "account")],
        lambda: (
            url.scheme == "az"
            and not (store["account"] or store["endpoint"] or "AZURE_STORAGE_ACCOUNT_NAME" in environ)
        ),
        lambda: "the storage account is missing: az:// names only the container",
    )
    reader.relate(
        [("store", "systemd_credential"), ("store", "credentials_file")],
        lambda: store["systemd_credential"] is not None and store["credentials_file"] is not None,
        lambda: "credentials_file is stated too: keep one of the two",
    )
    notices = _locate_credentials(store, environ)
    if is_checked and store["ca_file"] is not None:
        reader.file(("store", "ca_file"), store["ca_file"])
    if is_checked and store["credentials_path"] is not None:
        key = "credentials_file" if store["credentials_file"] is not None else "systemd_credential"
        content = reader.file(("store", key), store["credentials_path"])
        if content is not None:
            try:
                parse_credentials(url.scheme, content)
            except ValueError as error:
                reader.fault(("store", key), f"{store['credentials_path']}: {error}")
    return notices


def _locate_credentials(store: dict[str, Any], environ: Mapping[str, str]) -> list[str]:
    store["credentials_path"] = store["credentials_file"]
    name, directory = store["systemd_credential"], environ.get("CREDENTIALS_DIRECTORY")
    if name is not None and directory is None:
        store["credentials_source"] = f"systemd credential {name}, which is not there"
        return [f"store.systemd_credential: {name!r} is not checked: CREDENTIALS_DIRECTORY is not set"]
    if name is not None and directory is not None:
        found = [path for path in (Path(directory) / name, Path(directory) / f"cred_{name}") if path.is_file()]
        store["credentials_path"] = found[0] if found else Path(directory) / name
        store["credentials_source"] = f"systemd credential {name}"
    elif store["credentials_file"] is not None:
        store["credentials_source"] = f"file {store['credentials_file']}"
    else:
        store["credentials_source"] = _environment_source(store["url"].scheme, environ)
    return []


_STATIC_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("AWS_ACCESS_KEY_ID",),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_SECRET"),
}


def _environment_source(scheme: Scheme, environ: Mapping[str, str]) -> str:
    if scheme == "file":
        return "none"
    found = next((name for name in _STATIC_VARIABLES[scheme] if name in environ), None)
    return f"environment, {found}" if found else "instance metadata, since none are configured"


# Credentials ---------------------------------------------------------------------------------------------------

_CREDENTIAL_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    },
    "az": {
        "account_key": "account_key",
        "sas_token": "sas_key",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "tenant_id": "tenant_id",
    },
}
_COMPLETE: Final[Mapping[str, tuple[frozenset[str], ...]]] = {
    "s3": (frozenset(("access_key_id", "secret_access_key")),),
    "az": (
        frozenset(("account_key",)),
        frozenset(("sas_key",)),
        frozenset(("client_id", "client_secret", "tenant_id")),
    ),
}


def parse_credentials(scheme: Scheme, content: bytes) -> dict[str, str]:
    """Return settings of the object store's client; raises ValueError with a sentence that shows no value.

    S3 and Azure: lines `name = value`, as in AWS's own file; a section other than [default] is not read. Google: the
    service account's JSON.
    """
    if len(content) > MAX_CREDENTIALS_BYTES:
        raise ValueError(f"has {len(content):,} bytes; credentials have {MAX_CREDENTIALS_BYTES:,} at most")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    if scheme == "gs":
        return _service_account(text)
    known = _CREDENTIAL_KEYS[scheme]
    found = {known[name]: value for name, value in _pairs(text).items() if name in known and value}
    if not any(needed <= found.keys() for needed in _COMPLETE[scheme]):
        raise ValueError(f"expected lines name = value with {_wanted(scheme)}")
    return found


def _pairs(text: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="", strict=False)
    try:
        # Without a section header the lines count as those of [default].
        parser.read_string(text if text.lstrip().startswith("[") else f"[default]\n{text}")
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next((number for number, _ in getattr(error, "errors", ())), 0)
        raise ValueError(f"line {line} is not of the form name = value") from None
    return dict(parser["default"]) if parser.has_section("default") else {}


def _wanted(scheme: str) -> str:
    names = {field: name for name, field in _CREDENTIAL_KEYS[scheme].items()}
    return ", or ".join(" and ".join(sorted(names[field] for field in needed)) for needed in _COMPLETE[scheme])


def _service_account(text: str) -> dict[str, str]:
    try:
        account = json.loads(text)
    except ValueError:
        raise ValueError("is not the JSON of a service account") from None
    if not isinstance(account, dict) or "private_key" not in account:
        raise ValueError("is not the JSON of a service account: private_key is missing")
    return {"service_account_key": text}
