"""A peer that sends without end, as a process of its own, so that only the other side's memory is looked at.

python -m tests.draft.protocol.flooder draft|engine ADDRESS KEYS parts|frames|small COUNT
"""

import sys
import time
from pathlib import Path

import zmq

from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.sockets import Keys
from tests.draft.protocol.frames import hello

PART = bytes(1 << 20)
FRAME = bytes(4 << 20)


def _as_draft(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, keys: Keys
) -> "tuple[zmq.Socket[bytes], list[bytes]]":
    socket = context.socket(zmq.ROUTER)
    socket.curve_publickey, socket.curve_secretkey = keys.pair("draft")
    socket.curve_server = True
    socket.bind(address)
    sys.stdout.write(socket.getsockopt_string(zmq.LAST_ENDPOINT) + "\n")
    sys.stdout.flush()
    peer = socket.recv_multipart()[0]
    socket.send_multipart((peer, encode([hello()])))
    return socket, [peer]


def _as_engine(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, keys: Keys
) -> "tuple[zmq.Socket[bytes], list[bytes]]":
    socket = context.socket(zmq.DEALER)
    socket.curve_publickey, socket.curve_secretkey = keys.pair("engine")
    socket.curve_serverkey = keys.public("draft")
    socket.connect(address)
    return socket, []


def main() -> None:
    side, address, keys, kind, count = sys.argv[1:]
    context = zmq.Context()
    make = _as_draft if side == "draft" else _as_engine
    socket, envelope = make(context, address, Keys(Path(keys)))
    if kind == "parts":
        socket.send_multipart([*envelope, *[PART] * int(count)], copy=False)
    else:
        for _ in range(int(count)):
            socket.send_multipart([*envelope, FRAME if kind == "frames" else b"small"], copy=False)
    time.sleep(120)


if __name__ == "__main__":
    main()
