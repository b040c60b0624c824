"""With `VIVA_RPC_DEVICE=1`, give each Python process a device in another process: llama.cpp's RPC backend.

Python imports this module when it starts, as the folder is on `PYTHONPATH` (`make device`).
"""

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

if os.environ.get("VIVA_RPC_DEVICE") == "1":
    os.environ["VIVA_RPC_DEVICE"] = "server"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # The server ends with this process, which holds the other end of its stdin.
    subprocess.Popen(
        [sys.executable, Path(__file__).with_name("serve.py"), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    os.environ["VIVA_RPC_DEVICE"] = "1"
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))):
                break
    libraries = Path(os.environ["LLAMA_CPP_LIB_PATH"])
    rpc = ctypes.CDLL(str(libraries / "libggml-rpc.so"))
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    ggml = ctypes.CDLL(str(libraries / "libggml.so"))
    ggml.ggml_backend_register.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_register(rpc.ggml_backend_rpc_add_server(address.encode()))
