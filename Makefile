# make          builds build/superop
# make run      sets up the machine, builds, fetches the default model and answers a prompt
# make check    sets up the machine and runs every test; MODELS=all takes all models
# make install  DESTDIR and PREFIX as usual
# make bundle   one archive with CUDA that runs on other machines: build/cuda/superop-*.tar.xz
MODEL = smollm2-135m
PROMPT = Explain in three sentences why the sky is blue.
TOKENS = 128
PREFIX = /usr/local
MODELS ?=
export MODELS

build:
	@tools/setup.sh build --ask
	@$(MAKE) -s release

run:
	@tools/setup.sh build
	@$(MAKE) -s release
	@build/superop pull $(MODEL)
	@build/superop run -m $(MODEL) -p '$(PROMPT)' -n $(TOKENS)

check:
	@tools/setup.sh check
	@tests/lanes.sh

install: build
	@cmake --preset release -DCMAKE_INSTALL_PREFIX='$(PREFIX)' >/dev/null
	@DESTDIR='$(DESTDIR)' cmake --install build/release

bundle:
	@tools/setup.sh build
	@cmake --preset cuda -DCMAKE_CUDA_COMPILER:STRING="$$(tools/cuda.sh nvcc)" >/dev/null
	@cmake --build build/cuda --target superop_command
	@tools/bundle.sh build/cuda

release:
	@[ -e build/release/build.ninja ] || cmake --preset release >/dev/null
	@cmake --build build/release --target superop_shared superop_static superop_command
	@ln -sfn release/superop build/superop

clean:
	rm -rf build

.PHONY: build run check install bundle release clean
