# Read by llama.cpp's own build where `make venv` compiles the Python package: the package ships the library alone, so
# the code that only llama.cpp's programs use is left out; it was more than half of what there was to compile.
# llama-cpp-python sets the option by force, so that a -D on the command line would not do.
set(LLAMA_BUILD_COMMON OFF)
