"""A program that gets IP packets from a TUN device and puts them back later, or not at all: NAME DELAY JITTER LOSS."""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUN_SET_INTERFACE = 0x400454CA
IS_TUN, WITHOUT_HEADER = 0x0001, 0x1000
LARGEST_PACKET = 65_536


def open_device(name: str) -> int:
    """Create a device of that name and return its file; the device lives as long as that."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUN_SET_INTERFACE, struct.pack("16sH", name.encode(), IS_TUN | WITHOUT_HEADER))
    return device


def pass_on(device: int, delay_s: float, jitter_s: float, loss: float) -> None:
    """Give back each packet after its time, in the order in which they came; never returns."""
    waiting: deque[tuple[float, bytes]] = deque()
    latest = 0.0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([device], [], [], timeout)[0]:
            packet = os.read(device, LARGEST_PACKET)
            if random.random() >= loss:
                latest = max(latest, time.monotonic() + delay_s + random.uniform(-jitter_s, jitter_s))
                waiting.append((latest, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(device, waiting.popleft()[1])


if __name__ == "__main__":
    descriptor = open_device(sys.argv[1])
    print("ready", flush=True)
    pass_on(descriptor, *map(float, sys.argv[2:5]))
