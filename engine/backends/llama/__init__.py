"""The `llama` kind: local GGUF files. This module only prepares the process before llama.cpp is loaded."""

import os

# GCC's OpenMP lets waiting threads spin for about a millisecond. If another process needs the core, spinning takes its
# time: beside one busy process on two cores decoding fell from 210 to 1.4 tokens/s. A thousand iterations suffice for a
# barrier on idle cores (220 tokens/s) and cost little on busy ones (60 tokens/s).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
