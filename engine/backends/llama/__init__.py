"""The ``llama`` kind: local GGUF files. This page only sets up the process before llama.cpp's library is loaded."""

import os

# GCC's OpenMP lets threads that wait for each other spin for about a millisecond. Where anything else wants a core, a
# waiting thread then burns the time that the other needs: decoding fell from 210 to 1.4 tokens/s beside one busy
# process on two cores. A thousand turns are enough for a barrier on quiet cores (220 tokens/s) and cost little on busy
# ones (60 tokens/s).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
