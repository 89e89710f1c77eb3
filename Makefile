# Thin over CMake and pytest; docs/building.md has the details. Every target installs what it needs.
.DEFAULT_GOAL := build
.PHONY: setup build cli wheel wheel-release wheel-pure docs test check-fast demo lint format new-op dump stub bench bars fuzz cuda gpu-pack gpu-evidence performance \
  install clean
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# The same object code in every checkout and build folder, so ccache shares it.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

setup:  ## install everything that any other target needs
	tools/setup.sh test fuzz cuda

build:  ## build/bin/pestle, build/lib/libpestle.so and the tests
	@tools/setup.sh
	@tools/build.sh release

cli:  ## build/bin/pestle alone, for quick turns
	@tools/setup.sh
	@tools/build.sh release pestle_cli

# make wheel WHEEL="-C cmake.define.PESTLE_CUDA=OFF": other settings (docs/building.md)
wheel:  ## dist/pestle-VERSION-py3-none-manylinux....whl: the PyTorch package
	@tools/setup.sh wheel cuda
	@tools/wheel.sh $(WHEEL)

wheel-release:  ## the same for every architecture of a release: many compilations more
	@tools/setup.sh wheel cuda
	@tools/wheel.sh --release $(WHEEL)

wheel-pure: build  ## dist/pestle-VERSION-py3-none-any.whl: Triton and eager backends, torch 2.5 and later
	@tools/setup.sh wheel
	@tools/wheel_pure.sh

docs:  ## build/site/index.html: a page per task, the ops, the Python API
	@tools/setup.sh docs
	@.venv/bin/python tools/docs.py

test:  ## everything CI runs
	@tools/test.sh

check-fast: build  ## C++ tests of the release build only
	ctest --test-dir build --output-on-failure -j 2

# make test-files: build and run the tests of tests/files (or tests/python)
test-python: build
	@tools/setup.sh test
	PESTLE_BUILD_DIR=$(CURDIR)/build PESTLE_BIN=$(CURDIR)/build/bin/pestle pytest -q tests/python
test-torch: build  ## the wheel in a fresh environment, and its tests
	@tools/setup.sh test wheel cuda
	@tools/test_wheel.sh
test-lab: build  ## the workbench's tests, where the wheel is installed
	@tools/setup.sh test wheel cuda lab
	@tools/test_lab.sh
test-lab-ray: build  ## sweeps on a Ray cluster of two local nodes, which die: a minute that CI does not take
	@tools/setup.sh test wheel cuda lab
	@[ -x build/wheel-venv/bin/python ] || tools/test_wheel.sh
	build/wheel-venv/bin/python -m pytest -q tests/lab_ray
test-torch-pure: build  ## the pure-Python wheel under torch 2.5 and .venv's
	@tools/setup.sh test wheel torch25
	@tools/test_wheel_pure.sh
test-comfyui: build  ## files and nodes in the real ComfyUI of ../shared/comfyui, where that is
	@tools/setup.sh test comfyui
	@tools/test_comfyui.sh
test-rust: build  ## the Rust crates: format, clippy, tests, documentation, packages
	@tools/setup.sh rust
	@tools/test_rust.sh
test-%:
	@tools/setup.sh
	@tools/build.sh release pestle_test_$*
	ctest --test-dir build --output-on-failure -R '^$*'

demo: cli  ## quantise a real model to every format and show what it cost
	@tools/demo.sh

lint:
	@tools/setup.sh lint
	@cmake --preset release --log-level=WARNING >/dev/null
	@tools/lint.sh

format:
	@tools/setup.sh lint
	@tools/lint.sh --fix

new-op:  ## FAMILY=activation NAME=my_op: the files of a new op, as CONTRIBUTING.md goes on with
	@tools/new_op.py $(FAMILY) $(NAME)

dump: cli  ## refresh the files that are made from the op table
	@tools/dump.sh

stub:  ## python/pestle/__init__.pyi, which is made from the table too; needs torch
	@tools/setup.sh test
	@tools/build.sh release pestle_torch
	@tools/python_stub.sh

bench: build
	build/bin/pestle bench

bars: build  ## the bars of the project, each with figure, peer and verdict
	@tools/setup.sh test
	build/bin/pestle bench --bars

fuzz:  ## FUZZ_SECONDS of each fuzz target
	@tools/setup.sh fuzz
	@tools/build.sh fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS)

cuda:  ## build/cuda: with the CUDA backend; needs no GPU
	@tools/setup.sh cuda
	@tools/build.sh cuda

gpu-pack:  ## build/gpu: all that tools/gpu.sh run needs on a GPU machine
	@tools/gpu.sh pack

gpu-evidence:  ## build/gpu and build/gpu-torch: all that tools/gpu_evidence.py run needs there
	@tools/setup.sh cuda wheel
	@tools/gpu_evidence.py pack

performance:  ## docs/performance.md from bench/results
	@tools/performance.py --write

install:  ## headers, libraries, command line, CMake and pkg-config files under PREFIX
	@tools/setup.sh
	@tools/build.sh release pestle pestle_static pestle_cli
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-cuda build-wheel dist
