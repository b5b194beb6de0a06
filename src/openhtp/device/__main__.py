"""``python -m openhtp.device``: started by client libraries and by ``openhtp device start``, not by hand."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import resource
import socket
import sys
from typing import Any

from openhtp.core.foreign_text import PrintableFormatter
from openhtp.device.config import DeviceConfig
from openhtp.device.core import build_core
from openhtp.device.op_packages import load_packages
from openhtp.device.server import Server
from openhtp.device.sessions import FaultReach
from openhtp.engine.onnxruntime import MODELS_DECIDE
from openhtp.rpc import rendezvous
from openhtp.rpc.windows import open_window


def main() -> int:
    """Serve one device until its clients have gone."""
    parser = argparse.ArgumentParser(prog="openhtp-device", description="An HTP.")
    parser.add_argument("--fd", type=int, help="connected socket of the one client")
    parser.add_argument("--listen-fd", type=int, help="listening socket of a named device")
    parser.add_argument("--name", help="name of the device behind --listen-fd")
    parser.add_argument("--keep", action="store_true", help="stay when the last client leaves")
    parser.add_argument("--config", default="{}", help="DeviceConfig as JSON")
    parser.add_argument(
        "--allow-faults", action="store_true", help="let clients inject faults into their sessions"
    )
    parser.add_argument("--op-packages", default="{}", help="packages that clients may use, and folders, as JSON")
    options = parser.parse_args()
    if options.name is not None and os.fork():
        os._exit(0)  # a named device serves other processes too: it has no parent, so no process must wait for it
    os.environ.pop(MODELS_DECIDE, None)  # the engine's sessions need the options that they are given
    level = os.environ.get("OPENHTP_DEVICE_LOG", "WARNING").upper()
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("openhtp-device %(process)d %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # memory of all clients comes as descriptors
    config = DeviceConfig(**json.loads(options.config))
    load_packages(**json.loads(options.op_packages))
    core = build_core(config)
    if core.library is not None:
        core.library.log.attach()
    looking: dict[str, Any] = {"window": open_window(), "about": {"name": options.name, "soc": config.soc}}
    if options.fd is not None:
        server = Server(core, **looking)
        server.adopt(socket.socket(fileno=options.fd))
    else:
        core.serves_one = False
        core.faults = FaultReach.SESSION if options.allow_faults else FaultReach.NOBODY
        door = rendezvous.Door(options.name, socket.socket(fileno=options.listen_fd))
        server = Server(core, door=door, keep=options.keep, **looking)
    gc.freeze()  # objects that exist now stay; loading a graph must not wait for the collector to scan them
    server.run()
    if core.library is not None:
        core.library.close()
        sys.stdout.flush()
        os._exit(0)  # the exit handlers of the vendor's library are known to abort
    return 0


if __name__ == "__main__":
    sys.exit(main())
