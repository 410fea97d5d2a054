"""A TCP proxy before a real server that commits and drops the answer, answers 503, hangs, crawls, or is away."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Literal

Fault = Literal["none", "away", "hang", "drop answer", "503", "slow"]

_CHUNK_BYTES = 16 * 1024
_METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")
_UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FaultProxy:
    """Listens on `port` and passes everything to the server on `target_port`, as `fault` says from now on."""

    def __init__(self, target_port: int, slow_bytes_s: int = 1024) -> None:
        self._target_port = target_port
        self._slow_bytes_s = slow_bytes_s
        self.fault: Fault = "none"
        self.requests = 0
        """Requests seen, those refused among them."""
        self.dropped_answers = 0
        self.sent_bytes = 0
        """From the clients to the server."""
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def become(self, fault: Fault) -> None:
        """Behave like this from now on, also on open connections; they break when it is away."""
        self.fault = fault
        if fault == "away":
            asyncio.run_coroutine_threadsafe(self._break_all(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        await self._break_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _break_all(self) -> None:
        for writer in tuple(self._writers):
            writer.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.add(to_client)
        to_server: asyncio.StreamWriter | None = None
        try:
            if self.fault != "away":
                server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
                self._writers.add(to_server)
                pumps = [
                    asyncio.create_task(self._requests(client, to_server, to_client)),
                    asyncio.create_task(self._answers(server, to_client)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away itself, or the proxy ends
        finally:
            for writer in (to_client, to_server):
                if writer is not None:
                    self._writers.discard(writer)
                    writer.close()

    async def _requests(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, to_client: asyncio.StreamWriter
    ) -> None:
        while data := await client.read(_CHUNK_BYTES):
            self.requests += data.startswith(_METHODS)
            if self.fault == "503" and data.startswith(_METHODS):
                await self._refuse(client, to_client)
                return
            await self._hold(len(data))
            self.sent_bytes += len(data)
            to_server.write(data)
            await to_server.drain()

    async def _refuse(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        to_client.write(_UNAVAILABLE)
        await to_client.drain()
        # What is still sent is taken, or the client sees a reset before it has read the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while await client.read(_CHUNK_BYTES):
                    pass

    async def _answers(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        while data := await server.read(_CHUNK_BYTES):
            if self.fault == "drop answer":
                self.dropped_answers += 1
                return
            await self._hold(len(data))
            to_client.write(data)
            await to_client.drain()

    async def _hold(self, size_bytes: int) -> None:
        while self.fault == "hang":
            await asyncio.sleep(0.02)
        left = size_bytes
        while self.fault == "slow" and left > 0:
            await asyncio.sleep(0.1)
            left -= self._slow_bytes_s // 10
