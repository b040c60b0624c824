"""Serve this machine's CPU as a device of llama.cpp's RPC backend at an address, until stdin is closed."""

import ctypes
import os
import sys
import threading
from pathlib import Path


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


threading.Thread(target=_end_with_stdin, daemon=True).start()
libraries = Path(os.environ["LLAMA_CPP_LIB_PATH"])
ggml, rpc = (ctypes.CDLL(str(libraries / f"lib{name}.so")) for name in ("ggml", "ggml-rpc"))
ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(0))  # the CPU
threads, count = ctypes.c_size_t(os.cpu_count() or 1), ctypes.c_size_t(1)
rpc.ggml_backend_rpc_start_server(sys.argv[1].encode(), None, threads, count, devices)
