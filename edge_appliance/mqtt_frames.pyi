from typing import Any

def cut_publishes(
    data: bytes, start: int, has_properties: bool, max_packet_bytes: int, publish: type[Any], packets: list[Any], /
) -> int: ...
