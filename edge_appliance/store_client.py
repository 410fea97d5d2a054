"""Makes obstore's clients from the configuration, anew whenever the file with the credentials has changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from obstore.store import AzureStore, GCSStore, S3Store

from edge_appliance import __version__
from edge_appliance.config_store import Scheme, StoreSection, parse_credentials
from edge_appliance.core.store_reason import reason_of

LONGEST_S: Final = 3_600.0
"""The client's own limit of a request; ours are shorter and end it in every state."""


class CredentialsError(Exception):
    """Raised when no client can be made; the text says why."""


class Clients:
    """The client to be used now. Not thread-safe."""

    def __init__(self, settings: StoreSection) -> None:
        self._settings = settings
        self._client: Any = None
        self._made_of: tuple[int, int, int] | None = None

    def current(self) -> Any:
        """The client, or a new one when its credentials are older than their file."""
        path = self._settings.credentials_path
        try:
            stat = path.stat() if path is not None else None
            made_of = (stat.st_mtime_ns, stat.st_ino, stat.st_size) if stat is not None else None
            if self._client is None or made_of != self._made_of:
                secrets = parse_credentials(self._settings.url.scheme, path.read_bytes()) if path is not None else {}
                self._client, self._made_of = self._new(secrets), made_of
        except OSError as error:
            raise CredentialsError(f"the credentials cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise CredentialsError(f"the credentials cannot be used ({error})") from error
        except Exception as error:  # obstore's errors of configuration have no common class
            raise CredentialsError(reason_of(str(error))) from error
        return self._client

    def _new(self, secrets: dict[str, str]) -> Any:
        settings = self._settings
        options: dict[str, Any] = {
            "user_agent": f"edge-appliance/{__version__}",
            "allow_http": (settings.endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
            "timeout": timedelta(seconds=LONGEST_S),
        }
        if settings.ca_file is not None:
            options["root_certificate"] = settings.ca_file.read_bytes()
        if settings.proxy is not None:
            options["proxy_url"] = settings.proxy
        retries = {
            "max_retries": settings.retries,
            "retry_timeout": timedelta(seconds=settings.timeout_s),
            "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
        }
        stated = {key: value for key, value in _own_settings(settings).items() if value != ""}
        return _CLASSES[settings.url.scheme](
            settings.url.bucket,
            prefix=settings.url.prefix or None,
            client_options=options,
            retry_config=retries,
            **stated,
            **secrets,
        )


_CLASSES: Final[dict[Scheme, Callable[..., Any]]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


def _own_settings(settings: StoreSection) -> dict[str, Any]:
    """What each provider calls its settings; empty texts are left to the client."""
    endpoint = settings.endpoint or ""
    if settings.url.scheme == "s3":
        is_host_style = not settings.path_style
        return {"endpoint": endpoint, "region": settings.region, "virtual_hosted_style_request": is_host_style}
    if settings.url.scheme == "gs":
        return {"base_url": endpoint}
    return {"endpoint": endpoint, "account_name": settings.account}
